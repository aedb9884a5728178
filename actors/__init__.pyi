from .async_engine import AsyncRayEngine as AsyncRayEngine
from .engine import RayEngine as RayEngine
from .master import MasterStatus as MasterStatus
