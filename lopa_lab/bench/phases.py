"""The phases of a step, in order."""

from __future__ import annotations

from dataclasses import fields

from lopa_ray.protocol.report import StepTiming

PHASES = tuple(field.name for field in fields(StepTiming))
