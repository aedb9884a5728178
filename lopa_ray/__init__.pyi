from .config.decision_settings import DecisionSettings as DecisionSettings
from .config.generation_settings import GenerationSettings as GenerationSettings
from .config.given_part import GivenPart as GivenPart
from .config.group_settings import GroupSettings as GroupSettings
from .config.model_settings import ModelSettings as ModelSettings
from .config.scaling_settings import ScalingSettings as ScalingSettings
from .decisions.answers import (
    ChoiceAnswer as ChoiceAnswer,
    DecisionResult as DecisionResult,
    PredicateAnswer as PredicateAnswer,
    ScoreAnswer as ScoreAnswer,
)
from .decisions.questions import (
    ChoiceQuestion as ChoiceQuestion,
    Option as Option,
    PredicateQuestion as PredicateQuestion,
    ScoreQuestion as ScoreQuestion,
)
from .decoding.decoders.block_diffusion import BlockDiffusionSettings as BlockDiffusionSettings
from .decoding.decoders.dmax import DMaxSettings as DMaxSettings
from .decoding.decoders.editing import EditingSettings as EditingSettings
from .decoding.decoders.fast_dllm import FastDllmSettings as FastDllmSettings
from .decoding.decoders.indel import IndelSettings as IndelSettings
from .decoding.decoders.klass import KlassSettings as KlassSettings
from .decoding.decoders.lopa import D2FSettings as D2FSettings, LopaSettings as LopaSettings
from .decoding.decoders.multi_block import MultiBlockSettings as MultiBlockSettings
from .decoding.decoders.nemotron import NemotronSettings as NemotronSettings
from .decoding.decoders.renoising import RenoisingSettings as RenoisingSettings
from .decoding.decoders.s2d2 import (
    S2D2D2FSettings as S2D2D2FSettings,
    S2D2EditingSettings as S2D2EditingSettings,
    S2D2Settings as S2D2Settings,
)
from .decoding.decoders.self_speculation import SelfSpeculationSettings as SelfSpeculationSettings
from .decoding.decoders.vanilla import VanillaSettings as VanillaSettings
from .decoding.decoders.wino import WinoSettings as WinoSettings
from .decoding.lookahead_settings import LookaheadSettings as LookaheadSettings
from .decoding.result import GenerationResult as GenerationResult
from .decoding.session import DecodeSession as DecodeSession
from .decoding.trace import (
    TraceBranch as TraceBranch,
    TraceRuleStep as TraceRuleStep,
    TraceStep as TraceStep,
)
from .decoding.trajectory import Edit as Edit, ReplayedAnswer as ReplayedAnswer, Trajectory as Trajectory
from .engine.async_base import AsyncEngine as AsyncEngine
from .engine.base import Engine as Engine
from .engine.config import Config as Config
from .engine.decision_factory import DecisionTask as DecisionTask
from .engine.generation_chunk import GenerationChunk as GenerationChunk
from .engine.local import LocalEngine as LocalEngine
from .engine.rollout_formats import (
    dare_response as dare_response,
    jetengine_output as jetengine_output,
    tracerl_rows as tracerl_rows,
)
from .engine.session_factory import Prompt as Prompt, RequestSettings as RequestSettings
from .errors import (
    ActorStartError as ActorStartError,
    CapacityError as CapacityError,
    CheckpointError as CheckpointError,
    ClusterError as ClusterError,
    DeadlineError as DeadlineError,
    LopaError as LopaError,
    OverloadedError as OverloadedError,
    PromptError as PromptError,
    PromptTooLongError as PromptTooLongError,
    ProtocolError as ProtocolError,
    RepeatedLossError as RepeatedLossError,
    RequestCancelledError as RequestCancelledError,
    RequestError as RequestError,
    ScoreError as ScoreError,
    SettingsError as SettingsError,
    StepLimitError as StepLimitError,
    TransferError as TransferError,
    WorkerError as WorkerError,
    WorkerLostError as WorkerLostError,
    WorkerMemoryError as WorkerMemoryError,
)
from .protocol.events import (
    RequestEvent as RequestEvent,
    RequestFailure as RequestFailure,
    RequestStep as RequestStep,
)
from .protocol.outcome import (
    BlockView as BlockView,
    Decision as Decision,
    Draw as Draw,
    StepOutcome as StepOutcome,
)
from .protocol.plan import Plan as Plan
from .text.tokenizer import Tokenizer as Tokenizer

__version__: str
