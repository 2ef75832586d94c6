"""What TensorBoard shows of a run: its tabs, opened in headless Chromium, as pictures.

    python -m experiments.compare.screenshots runs/compare-boston experiments/compare

Needs a `chromium` on the path.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import click
from PIL import Image

# Name of the picture -> what follows the address, and the height of the window.
TABS = {
    "scalars": ("#scalars&tagFilter=.&_smoothingWeight=0", 1300),
    "hparams": ("#hparams", 600),
}


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def wait(address: str, seconds: float = 120) -> None:
    """Until TensorBoard answers and has read the run."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"{address}/data/runs") as answer:
                if answer.read().strip() not in (b"[]", b""):
                    return
        except OSError:
            pass
        time.sleep(0.5)
    raise SystemExit(f"TensorBoard shows no runs after {seconds} s")


@click.command()
@click.argument("run", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("out", type=click.Path(file_okay=False, path_type=Path))
@click.option("--width", default=1500, show_default=True)
def main(run: Path, out: Path, width: int) -> None:
    out.mkdir(parents=True, exist_ok=True)
    port = free_port()
    address = f"http://localhost:{port}"
    board = [sys.executable, "-m", "tensorboard.main", "--logdir", f"{run.name}/tensorboard", "--port", str(port)]
    with (
        subprocess.Popen(board, cwd=run.resolve().parent, stderr=subprocess.DEVNULL) as server,
        tempfile.TemporaryDirectory() as profile,
    ):
        try:
            wait(address)
            for name, (tab, height) in TABS.items():
                command = [
                    "chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
                    f"--user-data-dir={profile}", f"--window-size={width},{height}", "--virtual-time-budget=60000",
                    f"--screenshot={out / f'{name}.png'}", f"{address}/?darkMode=false{tab}",
                ]  # fmt: skip
                subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
                with Image.open(out / f"{name}.png") as picture:
                    small = picture.convert("P", palette=Image.Palette.ADAPTIVE, colors=128)
                small.save(out / f"{name}.png", optimize=True)
        finally:
            server.terminate()


if __name__ == "__main__":
    main()
