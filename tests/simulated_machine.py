"""A machine whose true step times are known, and which drifts, jitters and hiccups like a real one."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Noise:
    """How far and how fast a machine strays from its true step times; shares are relative to the step."""

    walk: float = 0.01
    """Standard deviation of the random walk of the speed (clocks, neighbours) after one second; grows with the root."""
    walk_pull: float = 0.02
    """Share of the walk that is lost again in a second: it strays, but not without end."""
    thermal: float = 0.04
    """Amplitude of a sinusoid, as of a fan that goes on and off."""
    thermal_seconds: float = 37.0
    """Period of the sinusoid."""
    jitter: float = 0.05
    """Standard deviation of the logarithm of a step's jitter."""
    autocorrelation: float = 0.7
    """Correlation of the logarithm of the jitter of one step and the next, whichever arms they belong to."""
    hiccup_rate: float = 0.02
    """Hiccups per second: something else ran."""
    hiccup_seconds: float = 0.3
    """Mean length of a hiccup; exponentially distributed."""


@dataclass
class SimulatedMachine:
    """Runs blocks of steps on a simulated clock.

    Drift and jitter belong to the machine, not to an arm, and multiply the true time: the ratio of two arms' medians is
    the ratio of their true times, whatever the noise.
    """

    step_seconds: Mapping[str, float]
    """Arm -> its true step time."""
    noise: Noise
    seed: int
    now_seconds: float = 0.0
    others_seconds: float = 0.0
    """For how long something else ran."""
    _walk: float = field(default=0.0, init=False)
    _jitter: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self._random = np.random.default_rng(self.seed)
        self._phase = float(self._random.uniform(0, 2 * math.pi))
        self._jitter = float(self._random.normal(0, self.noise.jitter))

    def run_block(self, arm: str, num_steps: int) -> list[float]:
        """Return the seconds of each step of a block, and let that time pass."""
        noise, true = self.noise, self.step_seconds[arm]
        innovation = noise.jitter * math.sqrt(1 - noise.autocorrelation**2)
        normals = self._random.normal(size=(num_steps, 2)).tolist()
        num_hiccups = self._random.poisson(noise.hiccup_rate * true, size=num_steps).tolist()
        steps = []
        for (of_walk, of_jitter), hiccups in zip(normals, num_hiccups, strict=True):
            self._walk += noise.walk * math.sqrt(true) * of_walk - noise.walk_pull * true * self._walk
            self._jitter = noise.autocorrelation * self._jitter + innovation * of_jitter
            angle = 2 * math.pi * self.now_seconds / noise.thermal_seconds + self._phase
            seconds = true * math.exp(self._walk + noise.thermal * math.sin(angle) + self._jitter)
            if hiccups:
                lost = float(self._random.gamma(hiccups, noise.hiccup_seconds))
                seconds += lost
                self.others_seconds += lost
            self.now_seconds += seconds
            steps.append(seconds)
        return steps
