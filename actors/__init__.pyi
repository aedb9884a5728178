from .async_engine import AsyncRayEngine as AsyncRayEngine
from .engine import RayEngine as RayEngine
from .master_status import MasterStatus as MasterStatus
