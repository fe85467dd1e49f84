"""Models and machines: bytes of KV a token, time to make them. Figures and their sources; no behaviour of the pool."""

from planner.hardware.accelerators import ACCELERATORS, Engine, engine_of
from planner.hardware.catalog import MODELS, find_model
from planner.hardware.model import Attention, Model

__all__ = ["ACCELERATORS", "MODELS", "Attention", "Engine", "Model", "engine_of", "find_model"]
