"""Thirty modules as users have them: torch's own layers, torchvision, timm and transformers, all small.

Each function returns a module, a batch of four inputs (a tensor, a tuple or a dict), and more arguments of `Net`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

Case = tuple[nn.Module, Any, dict[str, Any]]
CASES: dict[str, Callable[[], Case]] = {}
N, CLASSES = 4, 3


def case(function: Callable[[], Any]) -> Callable[[], Any]:
    CASES[function.__name__.replace("_", "-")] = function
    return function


def images(side: int, channels: int = 3) -> Tensor:
    return torch.randn(N, channels, side, side)


def tokens(length: int = 7, words: int = 20) -> Tensor:
    return torch.randint(1, words, (N, length))


# Layers of torch -------------------------------------------------------------------------------------------


@case
def mlp_layer_norm() -> Case:
    hidden = [nn.Linear(6, 16), nn.LayerNorm(16), nn.GELU(), nn.Dropout(0.1)]
    return nn.Sequential(*hidden, nn.Linear(16, CLASSES)), torch.randn(N, 6), {}


@case
def mlp_weight_norm() -> Case:
    norm = torch.nn.utils.parametrizations.weight_norm
    return nn.Sequential(norm(nn.Linear(6, 16)), nn.PReLU(), nn.Linear(16, CLASSES)), torch.randn(N, 6), {}


@case
def cnn_batch_norm_dropout() -> Case:
    layers = [nn.Conv2d(3, 8, 3, padding="same"), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.Dropout2d(0.2)]
    return nn.Sequential(*layers, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8 * 16, CLASSES)), images(8), {}


@case
def depthwise_separable() -> Case:
    layers = [nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.GroupNorm(2, 8), nn.Hardswish()]
    end = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, CLASSES)]
    return nn.Sequential(*layers, *end), images(8), {}


@case
def temporal_convolutions() -> Case:
    layers = [nn.Conv1d(2, 8, 3, padding=2, dilation=2), nn.ReLU(), nn.Conv1d(8, 8, 3, padding=4, dilation=4)]
    end = [nn.AdaptiveMaxPool1d(1), nn.Flatten(), nn.Linear(8, CLASSES)]
    return nn.Sequential(*layers, *end), torch.randn(N, 2, 15), {}


@case
def volumes() -> Case:
    layers = [nn.Conv3d(1, 4, 3, padding=1), nn.BatchNorm3d(4), nn.ReLU(), nn.AvgPool3d(2), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(32, CLASSES)), torch.randn(N, 1, 4, 4, 4), {}


@case
def decoder() -> Case:
    first = [nn.Linear(5, 16), nn.Unflatten(1, (4, 2, 2)), nn.ConvTranspose2d(4, 2, 3, 2, 1, 1)]
    second = [nn.InstanceNorm2d(2, affine=True), nn.ReLU(), nn.ConvTranspose2d(2, 1, 2, 2), nn.Flatten()]
    return nn.Sequential(*first, *second), torch.randn(N, 5), {"outputs": 64}


class Recurrent(nn.Module):
    """Word vectors, a recurrent layer, and the mean of its outputs."""

    def __init__(self, kind: type[nn.Module], **options: Any):
        super().__init__()
        self.words = nn.Embedding(20, 8, padding_idx=0)
        self.rnn = kind(8, 6, batch_first=True, **options)
        self.head = nn.Linear(6 * (1 + options.get("bidirectional", False)), CLASSES)

    def forward(self, x: Tensor) -> Any:
        return self.head(self.rnn(self.words(x))[0].mean(1))


@case
def lstm() -> Case:
    return Recurrent(nn.LSTM), tokens(), {}


@case
def gru_both_ways() -> Case:
    return Recurrent(nn.GRU, bidirectional=True, num_layers=2, dropout=0.1), tokens(), {}


class Encoder(nn.Module):
    """A transformer with the sequence on the first axis, torch's default."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.place = nn.Embedding(20, 8), nn.Parameter(0.02 * torch.randn(7, 1, 8))
        self.layers = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16), 2, enable_nested_tensor=False)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Any:
        return self.head(self.layers(self.words(x.T) + self.place).mean(0))


@case
def transformer_encoder() -> Case:
    return Encoder(), tokens(), {}


class Siamese(nn.Module):
    """One tower for two inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.tower, self.head = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8)), nn.Linear(8, 2)

    def forward(self, a: Tensor, b: Tensor) -> Any:
        return self.head((self.tower(a) - self.tower(b)).abs())


@case
def siamese() -> Case:
    return Siamese(), (torch.randn(N, 6), torch.randn(N, 6)), {}


class Graph(nn.Module):
    """Graph convolutions with a dense adjacency matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, CLASSES)

    def forward(self, nodes: Tensor, edges: Tensor) -> Any:
        h = (edges @ self.first(nodes)).relu()
        return {"scores": self.head((edges @ self.second(h)).relu().sum(1))}


@case
def graph_convolutions() -> Case:
    edges = (torch.rand(N, 5, 5) < 0.5).float()
    return Graph(), {"nodes": torch.randn(N, 5, 4), "edges": edges}, {"output": "scores"}


class Language(nn.Module):
    """Tied word vectors and outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.mix = nn.Embedding(20, 8), nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, 20, bias=False)
        self.head.weight = self.words.weight

    def forward(self, x: Tensor) -> Any:
        h = self.words(x)
        return self.head((h + self.mix(h, h, h)[0])[:, -1])


@case
def tied_language_model() -> Case:
    return Language(), tokens(), {}


# Torchvision -----------------------------------------------------------------------------------------------


def _vision(name: str, side: int = 32, **options: Any) -> Case:
    if not hasattr(torch.ops.torchvision, "nms"):  # its compiled operators may be of another build, and are not used
        library = torch.library.Library("torchvision", "DEF")
        library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _vision.library = library  # type: ignore[attr-defined]  # kept: the operators live as long as it does
    from torchvision import models

    return getattr(models, name)(num_classes=CLASSES, **options), images(side), {}


@case
def torchvision_resnet18() -> Case:
    return _vision("resnet18")


@case
def torchvision_mobilenet_v3() -> Case:
    return _vision("mobilenet_v3_small")


@case
def torchvision_shufflenet() -> Case:
    return _vision("shufflenet_v2_x0_5")


@case
def torchvision_densenet() -> Case:
    return _vision("DenseNet", growth_rate=4, block_config=(2, 2), num_init_features=8)


@case
def torchvision_vision_transformer() -> Case:
    sizes = {"image_size": 16, "patch_size": 8, "num_layers": 2, "num_heads": 2, "hidden_dim": 16, "mlp_dim": 32}
    return _vision("VisionTransformer", 16, **sizes)


@case
def torchvision_swin() -> Case:
    sizes = {"patch_size": [2, 2], "embed_dim": 8, "depths": [2, 2], "num_heads": [2, 2], "window_size": [4, 4]}
    return _vision("SwinTransformer", 16, stochastic_depth_prob=0.1, **sizes)


# Timm ------------------------------------------------------------------------------------------------------


def _timm(name: str, side: int = 32, **options: Any) -> Case:
    import timm

    return timm.create_model(name, num_classes=CLASSES, **options), images(side), {}


@case
def timm_vit_tiny() -> Case:
    return _timm("vit_tiny_patch16_224", img_size=32, depth=2, drop_path_rate=0.1)


@case
def timm_mixer() -> Case:
    from timm.models.mlp_mixer import MlpMixer

    return MlpMixer(CLASSES, img_size=16, patch_size=8, num_blocks=2, embed_dim=16), images(16), {}


@case
def timm_convnext() -> Case:
    return _timm("convnext_atto", depths=(1, 1, 1, 1), dims=(8, 16, 24, 32), side=64)


@case
def timm_mobilevit() -> Case:
    return _timm("mobilevit_xxs", side=64)


@case
def timm_efficientnet() -> Case:
    return _timm("efficientnet_lite0", side=32)


# Transformers ----------------------------------------------------------------------------------------------

SIZES = {"vocab_size": 20, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}


def _text() -> dict[str, Tensor]:
    mask = torch.ones(N, 7, dtype=torch.long)
    mask[0, 5:] = 0
    return {"input_ids": tokens(), "attention_mask": mask}


@case
def transformers_bert() -> Case:
    from transformers import BertConfig, BertForSequenceClassification

    return BertForSequenceClassification(BertConfig(**SIZES, num_labels=CLASSES)), _text(), {}


@case
def transformers_distilbert() -> Case:
    from transformers import DistilBertConfig, DistilBertForSequenceClassification

    sizes = {"vocab_size": 20, "dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32}
    return DistilBertForSequenceClassification(DistilBertConfig(**sizes, num_labels=CLASSES)), _text(), {}


@case
def transformers_gpt2() -> Case:
    from transformers import GPT2Config, GPT2ForSequenceClassification

    sizes = {"vocab_size": 20, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 16, "pad_token_id": 0}
    return GPT2ForSequenceClassification(GPT2Config(**sizes, num_labels=CLASSES)), _text(), {}


@case
def transformers_llama() -> Case:
    from transformers import LlamaConfig, LlamaForSequenceClassification

    config = LlamaConfig(**SIZES, num_labels=CLASSES, pad_token_id=0, max_position_embeddings=16)
    return LlamaForSequenceClassification(config), _text(), {}


@case
def transformers_vit() -> Case:
    from transformers import ViTConfig, ViTForImageClassification

    sizes = {name: size for name, size in SIZES.items() if name != "vocab_size"}
    config = ViTConfig(**sizes, image_size=16, patch_size=8, num_labels=CLASSES)
    return ViTForImageClassification(config), {"pixel_values": images(16)}, {}


@case
def peft_lora_bert() -> Case:
    from peft import LoraConfig, get_peft_model

    model, batch, _ = transformers_bert()
    config = LoraConfig(task_type="SEQ_CLS", r=2, lora_dropout=0.1, target_modules=["query", "value"])
    return get_peft_model(model, config), batch, {"bayesian": "*lora_*"}
