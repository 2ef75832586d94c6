"""Rules of the code base that no other test would notice being broken."""

import ast
import graphlib
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import explore

ROOT = Path(explore.__file__).parent
PLACES = {"": ROOT, "cli.": ROOT.parent / "cli", "envs.": ROOT.parent / "envs"}
FLOORS = {
    room: floor
    for floor, rooms in enumerate(
        (
            "core",
            "registry runs",
            "execution nets data envs",
            "inference images campaign",
            "posteriors acquisitions",
            "learning",
            "vime",
            "cli testing",
        )
    )
    for room in rooms.split()
}
ARROWS = 150  # at most so many pairs of rooms of which one imports from the other
LONGEST_FILE, LONGEST_FUNCTION = 350, 45  # lines; a docstring does not count for its function
CLOSURE = 20  # files that one posterior imports, itself included
PATHS = {
    prefix + ".".join(path.relative_to(place).with_suffix("").parts): path
    for prefix, place in PLACES.items()
    for path in place.rglob("*.py")
}
POSTERIORS = [module for module in PATHS if module.startswith("posteriors.")]


@pytest.fixture(scope="module")
def files():
    """The syntax tree of each module."""
    return {module: ast.parse(path.read_text(encoding="utf-8")) for module, path in PATHS.items()}


@pytest.fixture(scope="module")
def modules(files):
    """Without the package itself."""
    return {module: tree for module, tree in files.items() if module != "__init__"}


def imports(tree):
    """Modules within `explore` that a file imports, as dotted names without the leading package."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            found = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from (name.removeprefix("explore.") for name in found if name.startswith("explore."))


def home(name):
    """The file of a module, or of a name in one."""
    while name and name not in PATHS and f"{name}.__init__" not in PATHS:
        name = name.rpartition(".")[0]
    return name if name in PATHS else f"{name}.__init__".removeprefix(".")


def lines(node):
    return node.end_lineno - node.lineno + 1


def dotted(node):
    return f"{dotted(node.value)}.{node.attr}" if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def calls(tree):
    return [(dotted(node.func), node) for node in ast.walk(tree) if isinstance(node, ast.Call)]


def room(module):
    return module.partition(".")[0]


def test_there_are_few_rooms_and_floors():
    assert {room(module) for module in PATHS} - {"__init__"} == FLOORS.keys()
    assert len(FLOORS) <= 16 and max(FLOORS.values()) < 10


def test_imports_come_from_floors_below(modules):
    for module, tree in modules.items():
        for name in imports(tree):
            if room(name) != room(module) and not name.startswith("__"):
                assert FLOORS[room(name)] < FLOORS[room(module)], f"{module} imports {name}"


def test_no_public_name_comes_from_the_commands(files):
    """The package itself stands below its top floor."""
    top = {room for room, floor in FLOORS.items() if floor == max(FLOORS.values())}
    modules = {*imports(files["__init__"]), *explore._MODULES}
    assert not {room(name) for name in modules} & top


def test_there_are_few_arrows_between_rooms(files):
    arrows = {(room(module), room(name)) for module, tree in files.items() for name in imports(tree)}
    assert len({(a, b) for a, b in arrows if a != b}) <= ARROWS


def test_no_file_imports_itself_by_way_of_others(files):
    graph = {module: {home(name) for name in imports(tree)} - {module} for module, tree in files.items()}
    graphlib.TopologicalSorter(graph).prepare()  # which raises a CycleError that names them


def test_a_posterior_imports_few_files(files):
    edges = {module: {home(name) for name in imports(tree)} - {"__init__"} for module, tree in files.items()}
    for module in set(POSTERIORS) - {"posteriors.__init__"}:
        closure, new = set(), {module}
        while new:
            closure |= new
            new = {name for file in new for name in edges[file]} - closure
        assert len(closure) <= CLOSURE, f"{module}: {sorted(closure)}"


def test_files_and_functions_are_short(modules):
    for module, tree in modules.items():
        assert max((node.end_lineno or 0 for node in tree.body), default=0) <= LONGEST_FILE, module
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                documented = lines(node.body[0]) if ast.get_docstring(node) else 0
                length = lines(node) - documented
                assert length <= LONGEST_FUNCTION, f"{module}.{node.name} has {length} lines"


def test_plug_ins_share_machinery_and_import_no_other_plug_in(files):
    for module in POSTERIORS:
        assert not [name for name in imports(files[module]) if name.startswith("posteriors")], module


def test_reinforcement_learning_libraries_stay_in_their_adapters(modules):
    for module, tree in modules.items():
        found = {
            (node.module if isinstance(node, ast.ImportFrom) else node.names[0].name) or ""
            for node in ast.walk(tree)
            if isinstance(node, ast.Import | ast.ImportFrom)
        }
        if not module.startswith(("vime.sb3", "cli")):
            assert not any(name.startswith(("stable_baselines3", "sb3_contrib")) for name in found), module


KNOW_NO_POSTERIOR = {"learner", "classification", "compare", "fit"}
LOOPS = [m for m in PATHS if room(m) in ("acquisitions", "vime") or m.removeprefix("learning.") in KNOW_NO_POSTERIOR]


def test_loops_know_no_concrete_posterior(files):
    protocol = {f"inference.base.{name}" for name in ("Predictive", "Variational", "Common")}
    allowed = ("inference.predict", "inference.presets")
    for module in LOOPS:
        asked = {n for n in imports(files[module]) if n.startswith(("posteriors.", "inference."))}
        assert not [name for name in asked - protocol if not name.startswith(allowed)], module


def test_nothing_asks_for_the_class_of_a_plug_in(modules):
    kinds = ("posteriors.", "acquisitions.", "nets.likelihoods.")
    for module, tree in modules.items():
        plug_ins = {n.rpartition(".")[2] for n in imports(tree) if n.startswith(kinds)}
        for name, node in calls(tree):
            if name == "isinstance":
                asked = {dotted(n).rpartition(".")[2] for n in ast.walk(node.args[1])}
                assert not asked & plug_ins, f"{module}, line {node.lineno}"


def test_nothing_prints_or_touches_global_random_numbers(modules):
    # A function that takes no generator would draw from the global one.
    random = {"rand", "randn", "randint", "randperm", "normal", "bernoulli", "multinomial", "rand_like", "randn_like"}
    forbidden = {f"torch.{name}" for name in random | {"manual_seed", "cuda.manual_seed_all"}} | {"np.random.seed"}
    for module, tree in modules.items():
        found = {name for name, node in calls(tree) if not any(k.arg == "generator" for k in node.keywords)}
        assert not found & (forbidden if module.startswith("cli") else {*forbidden, "print"}), module


def test_commands_print_through_the_modules_that_show_texts_letter_by_letter(files):
    for module in [m for m in PATHS if m.startswith("cli.") and m != "cli.display"]:
        assert not {name for name, _ in calls(files[module])} & {"print", "click.echo", "click.secho"}, module
        assert not re.search(r"rich\.(console|table)", ast.dump(files[module])), module


@pytest.mark.parametrize(
    "code",
    [
        "import explore; explore.__version__",
        "from explore import registry; assert all(registry.names(kind) for kind in registry.KINDS)",
    ],
)
def test_importing_and_listing_load_no_torch(code):
    code += "; import sys; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT.parent)


def test_mutants_that_change_nothing_are_of_this_code():
    for entry in tomllib.loads((ROOT.parent / "tests" / "mutants.toml").read_text(encoding="utf-8"))["equivalent"]:
        lines = [line.strip() for line in (ROOT.parent / entry["file"]).read_text(encoding="utf-8").splitlines()]
        assert set(entry["old"].splitlines()) <= set(lines), entry
        assert entry["new"] != entry["old"] and entry["why"]
