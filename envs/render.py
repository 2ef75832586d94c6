"""Pictures of a simulation, and a window for them."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from explore.core.errors import InputError
from explore.envs.simulation import Array, Simulation

WIDTH, HEIGHT = 480, 320


def picture(simulation: Simulation, i: int = 0) -> Array:
    """Copy `i` as an array [320, 480, 3] of bytes."""
    x, y, half = simulation.view
    image = Image.new("RGB", (WIDTH, HEIGHT), "white")
    draw = ImageDraw.Draw(image)
    for points, fill in simulation.shapes(i):
        pixels = (points - (x, y)) * (1, -1) * (WIDTH / 2 / half) + (WIDTH / 2, HEIGHT / 2)
        corners = [tuple(p) for p in pixels.tolist()]
        if fill is None:
            draw.line(corners, "black", 2)
        else:
            draw.polygon(corners, fill, "black")
    return np.array(image)


class Window:
    """A window on the screen.

    Raises:
        InputError: where pygame is not installed.
    """

    def __init__(self, frames_per_second: int) -> None:
        os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
        try:
            import pygame
        except ImportError as error:
            raise InputError('render_mode="human" needs pygame: pip install "explore-bnn[render]"') from error
        pygame.init()
        self._pygame: Any = pygame
        self._screen = pygame.display.set_mode((WIDTH, HEIGHT))
        self._clock, self._rate = pygame.time.Clock(), frames_per_second

    def show(self, frame: Array) -> None:
        """Show a picture for as long as a step takes."""
        self._pygame.event.pump()
        self._screen.blit(self._pygame.surfarray.make_surface(frame.swapaxes(0, 1)), (0, 0))
        self._pygame.display.flip()
        self._clock.tick(self._rate)

    def close(self) -> None:
        """Close the window."""
        self._pygame.quit()
