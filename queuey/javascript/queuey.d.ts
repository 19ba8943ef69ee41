/** A stored message; `body` is text, bytes, or the JSON value that was sent. */
export interface Message {
  message_id: string;
  /** Seconds since 1970, with seven decimals. */
  timestamp: string;
  partition: number;
  body: unknown;
  content_type?: string;
  headers?: Record<string, string>;
  /** Set for messages of a stream of several queues. */
  queue_name?: string;
  /** The message is stored, but may still vanish, and others may still be stored before it. */
  early?: true;
}

export interface ClaimedMessage extends Message {
  receipt: string;
  /** The number of this attempt: deliveries that were given back before work on the message began do not count. */
  deliveries: number;
  /** The number of all deliveries; absent if it is that of the attempt. */
  handed_out?: number;
  /** An earlier claim expired: perhaps the message has ended its worker. So it comes alone; handle no other beside it. */
  suspected?: true;
  /** End of the claim, in seconds since 1970. */
  expires: number;
  /** The last state set by the worker of an earlier delivery. */
  state?: unknown;
}

export interface ReleaseOptions extends CallOptions {
  /** False if work on the messages has not begun, or was stopped. */
  begun?: boolean;
}

export interface Stored {
  key: string;
  /** Seconds since 1970, with seven decimals. */
  timestamp: string;
  partition: number;
  /** Returns the status of the job. */
  status(options?: CallOptions): Promise<JobInfo>;
  /** Returns the last state set by a worker. */
  state(options?: CallOptions): Promise<unknown>;
  /** Waits until the job has ended; returns its result, or throws a QueueyError with the job. */
  result(options?: ResultOptions): Promise<unknown>;
}

export interface JobInfo {
  message_id: string;
  partition: number;
  status:
    | "waiting"
    | "delayed"
    | "claimed"
    | "retrying"
    | "done"
    | "failed"
    | "expired"
    | "removed"
    | "superseded"
    | "never_seen"
    | "unknown";
  deliveries?: number;
  handed_out?: number;
  worker?: string;
  /** End of the claim, or of the delay of the release, in seconds since 1970. */
  expires?: number;
  /** When the job ended, if known, in seconds since 1970. */
  ended?: number;
  /** Null if the job had no result; undefined if the result is no longer known, or was too large. */
  result?: unknown;
  /** Size in bytes of a result that was too large. */
  size?: number;
  /** Seconds for which the queue keeps results; set if the result is no longer known. */
  kept?: number;
  error?: string;
  text?: string;
  state?: unknown;
  state_at?: number | null;
}

export interface JobOptions extends CallOptions {
  /** Seconds to wait until one of the jobs has ended. */
  wait?: number;
  /** Also return the states set by workers. */
  states?: boolean;
}

/** A job: the return value of `send`, a message, or `[<partition>:]<32 hex digits>`. */
export type JobPlace = string | Message | Pick<Stored, "key" | "partition">;

export interface ResultOptions extends CallOptions {
  /**
   * Max seconds to wait, even while the service cannot be reached. By default there is no limit, but the call fails when the
   * service cannot be reached for the `deadline`.
   */
  timeout?: number;
}

export interface Right {
  allow: ("send" | "read" | "delete" | "claim" | "admin" | "measure")[];
  queues?: string[];
  patterns?: string[];
}

export interface Me {
  names: string[];
  /** When the credential expires, in seconds since 1970. */
  expires: number | null;
  rights: Right[];
}

export interface Options {
  /** An application's key. Never put it into a page. */
  key?: string;
  /**
   * A user's token, or a function that returns one. It is called with `refresh` when a new token is needed. Its errors are
   * retried, except a QueueyError with a status, such as 401: the user is logged out.
   */
  token?: string | ((asked: { refresh: boolean }) => string | Promise<string>);
  /**
   * Seconds for which a request is repeated while the service cannot be reached or is busy, by default 30; 0 sends each once.
   * The seconds that a call waits are added. Requests that may not be repeated are not.
   */
  deadline?: number;
  /** Used instead of the global `fetch`. */
  fetch?: typeof fetch;
}

export interface CallOptions {
  signal?: AbortSignal;
}

/** Any number of messages, also in lists, and at the end maybe options. */
export type Several<M, O = Required<CallOptions>> = (string | M | (string | M)[])[] | [...(string | M | (string | M)[])[], O];

export interface QueueFields {
  partitions?: number;
  type?: "user" | "public";
  consistency?: "weak" | "strong" | "very_strong";
  principals?: string[];
  ttl?: number;
  read_delay?: number;
  max_deliveries?: number;
  backoff?: string | { first?: number; factor?: number; most?: number; jitter?: number };
  dead_letter?: string;
  on_ack?: string;
  on_expiry?: "drop" | "dead-letter";
  kind?: string;
  max_claimed?: number;
  max_claimed_per_key?: number;
  claims?: "open" | "paused";
  /** Seconds for which results of jobs are kept; 0 keeps none. */
  result_ttl?: number;
  description?: string;
}

export interface SendOptions extends CallOptions {
  /** Seconds to live. */
  ttl?: number;
  partition?: number;
  /** Messages with the same key go to the same partition. */
  key?: string;
  /** Seconds until it is due. */
  delay?: number;
  /** An id that the new one must be above. */
  after?: string;
  headers?: Record<string, string>;
  contentType?: string;
  /** Calls with the same key store the message once. By default, each call has its own key. */
  idempotencyKey?: string;
}

export interface ReadOptions extends CallOptions {
  since?: string | number;
  limit?: number;
  partitions?: string;
  order?: "ascending" | "descending";
  /** Seconds to wait for a message. */
  wait?: number;
  /** Also return messages that may still vanish, marked `early`; they are returned again later. A cursor: only those above it. */
  early?: boolean | string;
  merge?: boolean;
}

export interface ClaimOptions extends CallOptions {
  limit?: number;
  /** Seconds until the messages can be claimed again. */
  ttl?: number;
  wait?: number;
  partitions?: string;
}

export interface Gone {
  queue_name: string;
  error_msg: Record<string, string>;
}

/** Id of the last message that counts as read, by partition. */
export type ReadMarks = Record<string, string>;

export interface ReadMark {
  read: ReadMarks;
  /** Seconds until the mark can be set as requested; 0 if it is. */
  pending: number;
}

export interface Unread {
  queue_name: string;
  read: ReadMarks;
  /** Number of messages above the mark; null if not counted this time: call again for this queue. */
  unread: number | null;
  /** There are more than `unread`. */
  more: boolean;
}

/** The unread count of a queue in a stream. */
export interface StreamUnread extends Unread {
  unread: number;
  /** Position in the stream up to which messages were counted. */
  cursor: string;
}

export interface MarkOptions extends CallOptions {
  /** Let marks move backwards. */
  back?: boolean;
}

export interface UnreadOptions extends CallOptions {
  /** Max messages to count in each queue, by default 100. */
  limit?: number;
}

export interface StreamOptions extends CallOptions {
  /** Where to begin: an instant, an id, `now`; by default with the oldest message. */
  since?: string | number;
  limit?: number;
  partitions?: string;
  /** Yield messages as soon as they are stored; those that may still vanish are marked `early`. Each is yielded once. */
  early?: boolean;
  /** Last event id of an earlier stream, to resume it. */
  lastEventId?: string;
  /** Called when the stream is open, and when it waits to reconnect. */
  onState?: (state: "open" | "waiting", error?: QueueyError) => void;
  /** Called when a queue is no longer read. The stream stays, and follows the queue again once it can be read. */
  onGone?: (gone: Gone) => void;
  /**
   * Called with a queue's unread count when the stream opens, and again when the count is no longer right: the caller's mark
   * has moved on any device, or messages were removed. It counts the messages that the stream has yielded, and older ones:
   * unless `more` is set, add one for each message yielded later for which `isRead(message, unread.read)` is false. With
   * `early`, a message that vanishes may stay in that sum until the next call.
   */
  onRead?: (unread: StreamUnread) => void;
}

export interface ConsumeOptions extends CallOptions {
  /** Also queues whose names match these shell patterns, such as `parcels-*`. */
  patterns?: string | string[];
  /** Seconds without a heartbeat after which the member loses its partitions: 3 to 300, by default 10. */
  session?: number;
  /** Max seconds to give a partition back when another member waits for it, by default 30. */
  revoke?: number;
  /** A name that stays the same across restarts: the next member with it gets the same partitions. */
  instance?: string;
  /** Seconds for which the partitions of an instance are reserved after it leaves, by default 0. */
  grace?: number;
  /** A name that people read, such as host and process. It need not be unique. */
  name?: string;
  /** Called when the member has joined the group, and when it waits to rejoin. */
  onState?: (state: "open" | "waiting", error?: QueueyError) => void;
}

/** A message of a partition that a member of a group owns. */
export interface GroupMessage extends Message {
  queue_name: string;
  /** Aborted when the member no longer owns the partition; the message can no longer be committed. */
  readonly signal: AbortSignal;
  /**
   * Commits this message and all before it in its partition. Returns false if the member no longer owns the partition:
   * nothing was committed, and the next owner handles the message.
   */
  readonly commit: () => Promise<boolean>;
}

/** The result of a renewal of a claim. */
export interface Renewed {
  receipt: string;
  status: "ok" | "superseded";
  /** End of the claim, in seconds since 1970. */
  expires?: number;
  /** The job was cancelled; stop working on it. */
  cancelled?: boolean;
}

export declare class QueueyError extends Error {
  /** HTTP status; 0 without a response. */
  status: number;
  code: string;
  errors: Record<string, string>;
  /** Whether the request changed anything: `none` or `unknown`. */
  outcome: string;
  /** Seconds to wait before a retry, from the header Retry-After, which may be a date. */
  retryAfter: number;
  /** The job, in errors of `result`. */
  job?: JobInfo;
}

/** Whether a message is read according to marks. */
export declare function isRead(message: Pick<Message, "partition" | "message_id">, read: ReadMarks): boolean;

/** Client for the queues of one application. */
export declare class Queuey {
  constructor(url: string, application: string, options?: Options);
  /** Returns the caller's names and rights. */
  me(options?: CallOptions): Promise<Me>;
  /** Returns the names of the queues that the caller may read by name, not by a pattern. */
  myQueues(options?: CallOptions): Promise<string[]>;
  /** Creates a queue. Succeeds as well if it already exists with the same fields. */
  createQueue(name: string, fields?: QueueFields, options?: CallOptions): Promise<{ queue_name: string }>;
  /**
   * Sends text, bytes (a buffer, a view or a Blob), or any JSON value. Retries after failures do not store it twice.
   * Throws a TypeError for values that JSON cannot represent, such as a Map, and for headers and keys that are not
   * printable ASCII.
   */
  send(queue: string, body: unknown, options?: SendOptions): Promise<Stored>;
  /** Reads messages in order of time. Pass the returned `cursor` as `since` to read on. */
  read(queue: string, options?: ReadOptions): Promise<{ messages: Message[]; cursor: string; more: boolean }>;
  /**
   * Deletes messages, passed as objects or ids (`[<partition>:]<32 hex digits>`). Throws a TypeError for anything else. More
   * than 200 take several requests.
   */
  delete(queue: string, ...messages: Several<Message>): Promise<void>;
  /** Marks messages as read, in each partition up to the last one passed. A mark moves backwards only with `back`. */
  markRead(queue: string, seen: string | Message | (string | Message)[], options?: MarkOptions): Promise<ReadMark>;
  /** Counts the caller's unread messages, by default in all queues that it may read. A queue that cannot be read has an error. */
  unread(queues?: string | string[], options?: UnreadOptions): Promise<(Unread | Gone)[]>;
  /** Claims messages: no other worker gets them for `ttl` seconds. */
  claim(queue: string, options?: ClaimOptions): Promise<ClaimedMessage[]>;
  /** Marks claimed messages as done. */
  acknowledge(queue: string, ...messages: Several<ClaimedMessage>): Promise<void>;
  /** Marks a claimed message as done and stores the result of its job: any JSON value. */
  acknowledgeWith(queue: string, message: string | ClaimedMessage, result: unknown, options?: CallOptions): Promise<void>;
  /** Returns the status of up to 100 jobs; with `wait`, once one of them has ended or so many seconds are over. */
  jobs(queue: string, jobs: JobPlace | JobPlace[], options?: JobOptions): Promise<JobInfo[]>;
  /**
   * Waits until a job has ended; returns its result, or throws a QueueyError with the job. Concurrent calls for the same
   * queue share requests.
   */
  result(queue: string, job: JobPlace, options?: ResultOptions): Promise<unknown>;
  /**
   * Gives up claims, so that the messages can be claimed again. With `{ begun: false }` as the last argument their attempts
   * do not count, at most 10 times for a message.
   */
  release(queue: string, ...messages: Several<ClaimedMessage, ReleaseOptions>): Promise<void>;
  /** Extends claims to `ttl` seconds from now; returns a result for each. Stop working on those with `cancelled`. */
  renew(queue: string, ttl: number, ...messages: Several<ClaimedMessage>): Promise<Renewed[]>;
  /** Cancels a job: it is no longer delivered. The worker of a claimed job learns of it when it renews the claim. */
  cancelJob(queue: string, message: string | Message, options?: CallOptions): Promise<"removed" | "claimed" | "done">;
  /** Makes a job that was sent or released with a delay deliverable now. */
  retryJob(queue: string, message: string | Message, options?: CallOptions): Promise<"waiting" | "claimed" | "done">;
  /**
   * Yields messages as they arrive in one queue, in several, or (undefined) in all that the caller may read. Reconnects
   * after failures, restarts of the service and when tokens expire, without gaps or duplicates.
   */
  stream(queues?: string | string[], options?: StreamOptions): AsyncGenerator<Message, void, undefined>;
  /**
   * Yields messages of the partitions that this member of a consumer group owns, in order within each partition. Commit
   * each, or the next owner gets it again. The membership lasts until the loop ends; if it is lost, for example because the
   * service restarts, the member rejoins.
   */
  consume(group: string, queues?: string | string[], options?: ConsumeOptions): AsyncGenerator<GroupMessage, void, undefined>;
}
