"""Models and machines: bytes of KV per token, time to make them. Figures with their sources; no pool behaviour."""

from planner.hardware.accelerators import ACCELERATORS, Engine, engine_of
from planner.hardware.model import Attention, Model
from planner.hardware.published_models import MODELS, find_model

__all__ = ["ACCELERATORS", "MODELS", "Attention", "Engine", "Model", "engine_of", "find_model"]
