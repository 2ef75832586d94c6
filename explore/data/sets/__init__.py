"""Benchmark data sets: a table of published sets, and one file for each set with a loader of its own."""

from explore.data.source import Published, formatted, libsvm, openml, rows, sheet, uci

SETS = (
    Published(
        "australian",
        "Australian: credit approval with anonymous features scaled to [-1, 1] (690 x 14, classification).",
        "3a1ebc2844eb4a9925f479d30d70235dfe6553afa83ec05ed07d44e2d2c2dc61",
        " ".join(f"A{i}" for i in range(1, 15)),
        lambda: libsvm("australian_scale", 14, positive=1),
        classes=("-1", "+1"),
    ),
    Published(  # the first feature is an identification code
        "breast-cancer",
        "Breast cancer: benign or malignant cells, Wisconsin, scaled to [-1, 1] (683 x 10, classification).",
        "a28fff26c57692e58a1d4034d60e410024fee1a1de7e8c2c61908ba15f29a459",
        "sample_code clump_thickness cell_size_uniformity cell_shape_uniformity adhesion epithelial_cell_size "
        "bare_nuclei bland_chromatin normal_nucleoli mitoses",
        lambda: libsvm("breast-cancer_scale", 10, positive=4),
        classes=("benign", "malignant"),
    ),
    Published(  # amounts in kg/m3, age in days
        "concrete",
        "Concrete: compressive strength in MPa from mixture and age (1030 x 8, regression).",
        "da6db9753a6e371dbbd0ac31ead1d050a4cc638a077ec3c6f65b142c216404ee",
        "cement slag fly_ash water superplasticizer coarse_aggregate fine_aggregate age",
        lambda: sheet(uci(165, "concrete+compressive+strength", "Concrete_Data.xls"), "%.1f " * 7 + "%d %.2f"),
    ),
    Published(  # without the second target, cooling load, as in the literature
        "energy",
        "Energy: heating load of buildings from their shape (768 x 8, regression).",
        "66164218089e5496e49807783517331405f7355092f9d13e898c3d0df6f95b05",
        "relative_compactness surface_area wall_area roof_area overall_height orientation glazing_area "
        "glazing_area_distribution",
        lambda: sheet(uci(242, "energy+efficiency", "ENB2012_data.xlsx"), "%.2f " * 5 + "%d %.2f %d %.2f"),
    ),
    Published(  # the features are joint angles in radians
        "kin8nm",
        "Kin8nm: distance of an eight-link robot arm from a target (8192 x 8, regression).",
        "f30ec958948c39e095fafe351bf237e59a5c473c7ff8ad9a633598336fecce42",
        " ".join(f"theta{i}" for i in range(1, 9)),
        lambda: formatted(rows(openml("3626/dataset_2175_kin8nm.arff", "kin8nm.csv"), ",", header=True), "%.7e " * 9),
    ),
    Published(  # T1 and P1 are constant; without the second target, turbine decay, as in the literature
        "naval",
        "Naval: compressor decay of a frigate's gas turbine (11934 x 16, regression).",
        "af694673570227b92baff188bddbf46381f2833a56af0ef7ff729d63aca88936",
        "lever speed GTT GTn GGn Ts Tp T48 T1 T2 P48 P1 P2 Pexh TIC mf",
        lambda: [r[:17] for r in rows(uci(316, "condition+based+maintenance+of+naval+propulsion+plants", "data.txt"))],
    ),
    Published(  # the first of five shuffled sheets; its row order is not the canonical one
        "power",
        "Power: hourly output in MW of a combined-cycle power plant (9568 x 4, regression).",
        "366a98c492339475b6a494678d24b97baef240534620a1e4e45590fc446bf963",
        "AT V AP RH",
        lambda: sheet(uci(294, "combined+cycle+power+plant", "Folds5x2_pp.xlsx"), "%g " * 5),
        sorted_sha256="3d6414d4eece318f59e8bc32dc8beae20ac36b2e63665aa36fb9e5a3eb852ecf",
    ),
    Published(  # the file has the target in its first column
        "protein",
        "Protein: deviation of predicted protein structures in angstrom (45730 x 9, regression).",
        "d35f332707e8a73f21e021039250a1e7b26e14f7dd826a0337ffa8e8e48b9727",
        " ".join(f"F{i}" for i in range(1, 10)),
        lambda: [
            [*features, target]
            for target, *features in rows(
                uci(265, "physicochemical+properties+of+protein+tertiary+structure", "CASP.csv"), ",", header=True
            )
        ],
    ),
    Published(
        "wine",
        "Wine: tasters' quality score of red wines (1599 x 11, regression).",
        "3ba41eaf4ab562088cf47b5c9dca2b4de2a330c3ee38a7920b4527a09574d5c1",
        "fixed_acidity volatile_acidity citric_acid residual_sugar chlorides free_sulfur_dioxide "
        "total_sulfur_dioxide density pH sulphates alcohol",
        lambda: rows(uci(186, "wine+quality", "winequality-red.csv"), ";", header=True),
    ),
    Published(
        "yacht",
        "Yacht: residuary resistance of sailing yachts from their hull (308 x 6, regression).",
        "e49419685cd7e6d84f6a4b6405cd052b1922e8c1df10d2ca4660adf1c0329bfd",
        "buoyancy_position prismatic length_displacement beam_draught length_beam froude",
        lambda: rows(uci(243, "yacht+hydrodynamics", "yacht_hydrodynamics.data")),
    ),
)
PLUG_INS = {published.name: published for published in SETS}
