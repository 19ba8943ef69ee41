/** A message as the service has it; `body` is text, bytes, or the JSON value that was sent. */
export interface Message {
  message_id: string;
  /** Seconds since 1970, with seven decimals. */
  timestamp: string;
  partition: number;
  body: unknown;
  content_type?: string;
  headers?: Record<string, string>;
  /** Of messages of a stream of several queues. */
  queue_name?: string;
  /** It is stored, but may vanish yet, and others may come before it. */
  early?: true;
}

export interface ClaimedMessage extends Message {
  receipt: string;
  /** How often it has been claimed, this time included. */
  deliveries: number;
  /** Seconds since 1970 until which nobody else gets it. */
  expires: number;
  /** The last one that the worker of an earlier delivery has set. */
  state?: unknown;
}

export interface Stored {
  key: string;
  timestamp: number;
  partition: number;
  /** What became of the job. */
  status(options?: CallOptions): Promise<JobInfo>;
  /** The last state that a worker has set. */
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
  worker?: string;
  /** End of the claim, or of the delay of the release, in seconds since 1970. */
  expires?: number;
  /** When it ended, if that is known. */
  ended?: number;
  /** Null: it had none. Not there: it is not known any more, or was too large. */
  result?: unknown;
  /** Bytes of a result that was too large. */
  size?: number;
  /** Seconds for which the queue keeps results, where one is not known any more. */
  kept?: number;
  error?: string;
  text?: string;
  state?: unknown;
  state_at?: number | null;
}

export interface JobOptions extends CallOptions {
  /** Seconds to wait until one of the jobs has ended. */
  wait?: number;
  /** Also show the states that workers have set. */
  states?: boolean;
}

/** A job: what `send` has returned, a message, or `[<partition>:]<32 hex digits>`. */
export type JobPlace = string | Message | Pick<Stored, "key" | "partition">;

export interface ResultOptions extends CallOptions {
  /** Seconds; by default there is no limit. */
  timeout?: number;
}

export interface Right {
  allow: ("send" | "read" | "delete" | "claim" | "admin" | "measure")[];
  queues?: string[];
  patterns?: string[];
}

export interface Me {
  names: string[];
  /** Seconds since 1970 when the credential ends. */
  expires: number | null;
  rights: Right[];
}

export interface Options {
  /** An application's key. It does not belong into a page. */
  key?: string;
  /** A user's token, or what gets one: asked again with `refresh` when the service wants another one. */
  token?: string | ((asked: { refresh: boolean }) => string | Promise<string>);
  /** In place of the global `fetch`. */
  fetch?: typeof fetch;
}

export interface CallOptions {
  signal?: AbortSignal;
}

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
  /** Seconds for which results of jobs are kept; 0: none is. */
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
  /** Sends of one message with the same key store it once. By default each call has a key of its own. */
  idempotencyKey?: string;
}

export interface ReadOptions extends CallOptions {
  since?: string | number;
  limit?: number;
  partitions?: string;
  order?: "ascending" | "descending";
  /** Seconds to wait for a message. */
  wait?: number;
  /** Also what is stored and may vanish yet, marked; it comes again in its place. A cursor: only what is above it. */
  early?: boolean | string;
  merge?: boolean;
}

export interface ClaimOptions extends CallOptions {
  limit?: number;
  /** Seconds for which nobody else gets them. */
  ttl?: number;
  wait?: number;
  partitions?: string;
}

export interface Gone {
  queue_name: string;
  error_msg: Record<string, string>;
}

/** By partition the id of the last message that counts as read. */
export type ReadMarks = Record<string, string>;

export interface ReadMark {
  read: ReadMarks;
  /** Seconds until the mark can be set as asked; 0: it is. */
  pending: number;
}

export interface Unread {
  queue_name: string;
  read: ReadMarks;
  /** Messages above the mark; null: not counted this time, ask again for this queue. */
  unread: number | null;
  /** There are more than `unread`. */
  more: boolean;
}

export interface MarkOptions extends CallOptions {
  /** Also mark less than before. */
  back?: boolean;
}

export interface UnreadOptions extends CallOptions {
  /** Messages of each queue to count at most; by default 100. */
  limit?: number;
}

export interface StreamOptions extends CallOptions {
  /** Where to begin: an instant, an id, `now`; by default with the oldest message. */
  since?: string | number;
  limit?: number;
  partitions?: string;
  /** Messages come as soon as they are stored; those that may vanish yet are marked. Each comes once. */
  early?: boolean;
  /** Where a stream of an earlier page has come to. */
  lastEventId?: string;
  /** Told when the stream is open, and when it waits to be opened again. */
  onState?: (state: "open" | "waiting", error?: QueueyError) => void;
  /** Told when a queue is not read any more. */
  onGone?: (gone: Gone) => void;
  /** Told what is unread when the stream is opened, and when the caller's mark in a queue moves, on any device. */
  onRead?: (unread: Unread) => void;
}

export interface ConsumeOptions extends CallOptions {
  /** Also queues whose names match these shell patterns, such as `parcels-*`. */
  patterns?: string | string[];
  /** Seconds without a heartbeat after which the member has lost its partitions: 3 to 300, by default 10. */
  session?: number;
  /** Seconds in which it gives partitions back for which others wait; by default 30. */
  revoke?: number;
  /** A name that stays over restarts: the next member of this name gets the same partitions. */
  instance?: string;
  /** Seconds for which the partitions of an instance wait for its return; by default 0. */
  grace?: number;
  /** Told when it has joined the group, and when it waits to join it again. */
  onState?: (state: "open" | "waiting", error?: QueueyError) => void;
}

/** A message of a partition that a member of a group owns. */
export interface GroupMessage extends Message {
  queue_name: string;
  /** Aborted when the member does not own the partition any more: nothing can be recorded for the message. */
  readonly signal: AbortSignal;
  /**
   * Records that this message, and all before it in its partition, are handled. False: the member does not own the
   * partition any more, nothing was recorded, and the next owner handles the message.
   */
  readonly commit: () => Promise<boolean>;
}

/** The result of a renewal of a claim. */
export interface Renewed {
  receipt: string;
  status: "ok" | "superseded";
  /** End of the claim, in seconds since 1970. */
  expires?: number;
  /** The job was cancelled: its worker is asked to stop. */
  cancelled?: boolean;
}

export declare class QueueyError extends Error {
  /** The answer's status; 0: there was no answer. */
  status: number;
  code: string;
  errors: Record<string, string>;
  /** Whether anything was changed: `none`, or `unknown`. */
  outcome: string;
  /** Seconds that the service asks to wait. */
  retryAfter: number;
  /** The job that has no result. */
  job?: JobInfo;
}

/** Whether a mark says that a message was read. */
export declare function isRead(message: Pick<Message, "partition" | "message_id">, read: ReadMarks): boolean;

/** Speaks with the queues of one application. */
export declare class Queuey {
  constructor(url: string, application: string, options?: Options);
  /** Who the caller is, and what it may do. */
  me(options?: CallOptions): Promise<Me>;
  /** Names of the queues that are the caller's own, for reading. */
  myQueues(options?: CallOptions): Promise<string[]>;
  /** Creates a queue; one that is there with the same fields is a success. */
  createQueue(name: string, fields?: QueueFields, options?: CallOptions): Promise<{ queue_name: string }>;
  /**
   * Stores text, bytes (a buffer, a view or a Blob), or any JSON value. Sent again after a failure, it is stored once.
   * What has no form in JSON, such as a Map, is a TypeError; so are headers and keys that are not printable ASCII.
   */
  send(queue: string, body: unknown, options?: SendOptions): Promise<Stored>;
  /** Reads messages in time order; `cursor` is where the next read goes on. */
  read(queue: string, options?: ReadOptions): Promise<{ messages: Message[]; cursor: string; more: boolean }>;
  /** Deletes messages, given as such or by their ids: `[<partition>:]<32 hex digits>`; anything else is a TypeError. */
  delete(queue: string, ...messages: (string | Message | (string | Message)[])[]): Promise<void>;
  /** Marks up to where the caller has read a queue. A mark never goes back unless `back` is set. */
  markRead(queue: string, seen: string | Message | (string | Message)[], options?: MarkOptions): Promise<ReadMark>;
  /** Counts what the caller has not read, of queues, or of all that it may read. A queue that cannot be read has an error. */
  unread(queues?: string | string[], options?: UnreadOptions): Promise<(Unread | Gone)[]>;
  /** Claims messages: nobody else gets them until `ttl` is over. */
  claim(queue: string, options?: ClaimOptions): Promise<ClaimedMessage[]>;
  /** Says that claimed messages are done. */
  acknowledge(queue: string, ...messages: (string | ClaimedMessage | (string | ClaimedMessage)[])[]): Promise<void>;
  /** Says that a claimed message is done, with the result of its job: any JSON value. */
  acknowledgeWith(queue: string, message: string | ClaimedMessage, result: unknown): Promise<void>;
  /** What became of jobs, up to 100; with `wait` it waits until one of them has ended. */
  jobs(queue: string, jobs: JobPlace | JobPlace[], options?: JobOptions): Promise<JobInfo[]>;
  /** Waits until a job has ended; returns its result, or throws a QueueyError with the job. Waits share a request. */
  result(queue: string, job: JobPlace, options?: ResultOptions): Promise<unknown>;
  /** Gives claimed messages back, to be claimed again. */
  release(queue: string, ...messages: (string | ClaimedMessage | (string | ClaimedMessage)[])[]): Promise<void>;
  /** Keeps claims for `ttl` seconds from now on. A job whose result has `cancelled` is to be stopped. */
  renew(queue: string, ttl: number, ...messages: (string | ClaimedMessage | (string | ClaimedMessage)[])[]): Promise<Renewed[]>;
  /** Cancels a job: it is not delivered any more. The worker of a claimed one learns of it when it renews. */
  cancelJob(queue: string, message: string | Message): Promise<"removed" | "claimed" | "done">;
  /** Makes a job that was released with a delay, or is delayed, deliverable now. */
  retryJob(queue: string, message: string | Message): Promise<"waiting" | "claimed" | "done">;
  /**
   * Messages as they come, of one queue, of several, or (undefined) of all that the caller may read. It goes on after
   * failures, restarts of the service and the ends of tokens: nothing is left out, and nothing comes twice.
   */
  stream(queues?: string | string[], options?: StreamOptions): AsyncGenerator<Message, void, undefined>;
  /**
   * Messages of the partitions that this member of a consumer group owns; those of one partition come in order. Each is to
   * be committed, or comes again to the next owner. It keeps its membership until the loop ends, joins again if it has lost
   * it, and goes on after failures and restarts of the service.
   */
  consume(group: string, queues?: string | string[], options?: ConsumeOptions): AsyncGenerator<GroupMessage, void, undefined>;
}
