"""The HTTP client of Queuey: :class:`Client` for threads, :class:`AsyncClient` for async code.

Importing this loads no HTTP library and reads neither the environment nor any file.
"""

from queuey.api.claims import Backlog, ClaimCounts, PartitionClaims, QueueSize
from queuey.api.explaining import QueueExplanation
from queuey.api.progress import GroupOffset, Move, Offsets
from queuey.api.queues import Hello, PartitionInfo, QueueInfo
from queuey.api.reads import Explanation, ReadMark, Reason
from queuey.api.schedules import Tick
from queuey.client._async.client import AsyncClient
from queuey.client._async.job import AsyncJob
from queuey.client._async.job_queue import AsyncJobQueue
from queuey.client._async.moving import AsyncMoving
from queuey.client._async.named import AsyncNamedMessages
from queuey.client._async.schedules import AsyncSchedules
from queuey.client._sync.client import Client
from queuey.client._sync.job import Job
from queuey.client._sync.job_queue import JobQueue
from queuey.client._sync.moving import Moving
from queuey.client._sync.named import NamedMessages
from queuey.client._sync.schedules import Schedules
from queuey.client.calls.queue_calls import QueueFields
from queuey.client.calls.read_calls import Query, ReadOptions
from queuey.client.calls.send_calls import Outgoing, SendOptions
from queuey.client.calls.tracing import disable_tracing, enable_tracing
from queuey.client.claims.claiming import ClaimOptions
from queuey.client.credentials.profile import Profile
from queuey.client.credentials.tokens import Token
from queuey.client.errors import (
    AnswerTimeout,
    ApiError,
    ApplicationNotFound,
    ClaimLost,
    ClientError,
    Conflict,
    ConnectionFailed,
    ConnectionLost,
    ConnectTimeout,
    GroupNotFound,
    InvalidAnswer,
    InvalidArgument,
    InvalidRequest,
    KeyInUse,
    KeyReused,
    MessageNotFound,
    NameNotFound,
    NameTaken,
    NotAllowed,
    NotAuthenticated,
    NotFound,
    OffsetConflict,
    ProfileError,
    ProfileExposed,
    ProfileInvalid,
    ProfileNotFound,
    QueueExists,
    QueueNotFound,
    ReceiptsError,
    RenewalError,
    ServerError,
    ServiceUnavailable,
    Timeout,
    TokenError,
    TooLarge,
    TooManyWaiters,
    TransportError,
)
from queuey.client.http.attempts import AsyncTiming, Timing
from queuey.client.http.retry import RetryPolicy
from queuey.client.results import (
    EARLIEST,
    Claimed,
    CreatedQueue,
    Message,
    NamePage,
    OutstandingJob,
    Page,
    Queue,
    QueuePage,
    QueueRead,
    RawMessage,
    Receipt,
    Received,
    Refused,
    Schedule,
    StreamedMessage,
    Unread,
    id_after,
    id_before,
    order_of,
    time_of,
)
from queuey.messages import Backoff
from queuey.user_queues import queue_name, user_name

__all__ = [
    "EARLIEST",
    "AnswerTimeout",
    "ApiError",
    "ApplicationNotFound",
    "AsyncClient",
    "AsyncJob",
    "AsyncJobQueue",
    "AsyncMoving",
    "AsyncNamedMessages",
    "AsyncSchedules",
    "AsyncTiming",
    "Backlog",
    "Backoff",
    "ClaimCounts",
    "ClaimLost",
    "ClaimOptions",
    "Claimed",
    "Client",
    "ClientError",
    "Conflict",
    "ConnectTimeout",
    "ConnectionFailed",
    "ConnectionLost",
    "CreatedQueue",
    "Explanation",
    "GroupNotFound",
    "GroupOffset",
    "Hello",
    "InvalidAnswer",
    "InvalidArgument",
    "InvalidRequest",
    "Job",
    "JobQueue",
    "KeyInUse",
    "KeyReused",
    "Message",
    "MessageNotFound",
    "Move",
    "Moving",
    "NameNotFound",
    "NamePage",
    "NameTaken",
    "NamedMessages",
    "NotAllowed",
    "NotAuthenticated",
    "NotFound",
    "OffsetConflict",
    "Offsets",
    "Outgoing",
    "OutstandingJob",
    "Page",
    "PartitionClaims",
    "PartitionInfo",
    "Profile",
    "ProfileError",
    "ProfileExposed",
    "ProfileInvalid",
    "ProfileNotFound",
    "Query",
    "Queue",
    "QueueExists",
    "QueueExplanation",
    "QueueFields",
    "QueueInfo",
    "QueueNotFound",
    "QueuePage",
    "QueueRead",
    "QueueSize",
    "RawMessage",
    "ReadMark",
    "ReadOptions",
    "Reason",
    "Receipt",
    "ReceiptsError",
    "Received",
    "Refused",
    "RenewalError",
    "RetryPolicy",
    "Schedule",
    "Schedules",
    "SendOptions",
    "ServerError",
    "ServiceUnavailable",
    "StreamedMessage",
    "Tick",
    "Timeout",
    "Timing",
    "Token",
    "TokenError",
    "TooLarge",
    "TooManyWaiters",
    "TransportError",
    "Unread",
    "disable_tracing",
    "enable_tracing",
    "id_after",
    "id_before",
    "order_of",
    "queue_name",
    "time_of",
    "user_name",
]
