"""CIFAR-100: a hundred kinds of things (50,000 + 10,000 colour images of 32 x 32)."""

from pathlib import Path

from explore.images.base import Images
from explore.images.source import binary_batches

CLASSES = (
    "apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can "
    "castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin "
    "elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster "
    "man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck "
    "pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk "
    "skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank telephone television tiger "
    "tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm"
)


def cifar100(folder: Path | None = None) -> Images:
    """The official images with their fine classes; always of the publisher's archive, whatever the folder."""
    train, test = binary_batches(
        "cifar-100-binary.tar.gz", "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec", 2,
        ["train.bin"], ["test.bin"],
    )  # fmt: skip
    return Images("cifar100", *train, *test, tuple(CLASSES.split()), "crop-flip")
