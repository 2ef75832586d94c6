"""Let Python cache bytecode, also where the environment forbids it: tests start many processes that import PyTorch."""

import os
import sys
from pathlib import Path

if sys.dont_write_bytecode:
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = str(Path(__file__).parent / "build" / "bytecode")
    sys.dont_write_bytecode, sys.pycache_prefix = False, os.environ["PYTHONPYCACHEPREFIX"]
