from .async_engine import AsyncRayEngine as AsyncRayEngine
from .engine import RayEngine as RayEngine
from .group.master_status import MasterStatus as MasterStatus
from .workers.weight_broadcast import WeightBroadcast as WeightBroadcast
