"""Benchmark image sets: a table of published sets, and one file for each set with a loader of its own."""

from explore.images.source import Cifar, Idx

SETS = (
    Cifar(
        "cifar10",
        "CIFAR-10: ten kinds of animals and vehicles (50,000 + 10,000 colour images of 32 x 32).",
        "airplane automobile bird cat deer dog frog horse ship truck",
        "cifar-10-binary.tar.gz",
        "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
        labels=1,
        files=(*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"),
        shards={  # rows in a different order than the publisher's, which defines the parts
            "train_1.npz": "6dbeaf00ed12a618d167376b955d1ebf59e0aeb3e45f4f69a68c3dc3384a5f17",
            "train_2.npz": "b8f044197177a5111a6e066e2328cdf2bf967971b108d1f457a3f4c3aa401b95",
            "train_3.npz": "b7fb86f885ee4b25d602e3fd32ab1671ea108bbddfc5e86c8bb11a5e3ff3b6d7",
            "train_4.npz": "e4f17648b4d40f454d7a1d5caff0085652a931939000ae9f2234b63bf2f04f75",
            "train_5.npz": "a125048058d87c7035a241c7104a7744b46c1bbb37774cb8be7fa8325cb42735",
            "test.npz": "1066f989ac8c9e15b0157d59dfd337e6bc645273afad29ac9567891d4a9e2569",
        },
    ),
    Cifar(
        "cifar100",
        "CIFAR-100: a hundred kinds of things (50,000 + 10,000 colour images of 32 x 32).",
        "apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel "
        "can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur "
        "dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion "
        "lizard lobster man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree "
        "pear pickup_truck pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea "
        "seal shark shrew skunk skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table "
        "tank telephone television tiger tractor train trout tulip turtle wardrobe whale willow_tree wolf woman "
        "worm",
        "cifar-100-binary.tar.gz",
        "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
        labels=2,  # a coarse and a fine label; the fine label is used
        files=("train.bin", "test.bin"),
    ),
    Idx(
        "fashion-mnist",
        "Fashion-MNIST: clothes from a shop (60,000 + 10,000 grey images of 28 x 28).",
        ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot"),
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion",
        {
            "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        },
    ),
    Idx(
        "mnist",
        "MNIST: handwritten digits (60,000 + 10,000 grey images of 28 x 28).",
        tuple("0123456789"),
        "https://storage.googleapis.com/cvdf-datasets/mnist",
        {
            "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        },
    ),
)
PLUG_INS = {published.name: published for published in SETS}
