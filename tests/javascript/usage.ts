// Compiled, not run: valid and invalid uses of the types.
import { isRead, Queuey, QueueyError, type Message, type Unread } from "./queuey.js";

const queuey = new Queuey("https://queuey.example.com", "shop", { token: async ({ refresh }) => (refresh ? "b" : "a") });

export async function show(signal: AbortSignal): Promise<string[]> {
  const names: string[] = await queuey.myQueues();
  const stored = await queuey.send("q", { any: ["json"] }, { ttl: 60, headers: { colour: "red" } });
  const partition: number = stored.partition;
  for await (const message of queuey.stream(names, { signal, since: "now", onGone: (gone) => names.push(gone.queue_name) })) {
    const body: unknown = message.body;
    console.log(partition, body, message.queue_name?.length);
    await queuey.delete("q", message, [message, message.message_id], { signal });
  }
  const result: unknown = await stored.result({ timeout: 5, signal });
  console.log(result, (await queuey.jobs("q", [stored], { states: true })).map((each) => each.status));
  const [job] = await queuey.claim("q", { wait: 20 });
  if (job) await queuey.release("q", job, { begun: false });
  if (job) await queuey.acknowledgeWith("q", job, { any: ["json"] });
  if (job) await queuey.acknowledge("q", job.receipt, [job], { signal });
  if (job && (await queuey.renew("q", 60, job)).some((each) => each.cancelled)) console.log(await queuey.retryJob("q", job));
  const cancelled: "removed" | "claimed" | "done" = await queuey.cancelJob("q", stored.key);
  console.log(cancelled);
  const { read } = await queuey.markRead("q", stored.key, { back: true });
  const counted = await queuey.unread(names, { limit: 1000 });
  console.log(counted.map((each) => ("unread" in each ? each.unread ?? 0 : Object.keys(each.error_msg).length)));
  for await (const message of queuey.stream("q", { onRead: (unread: Unread) => console.log(unread.unread) })) {
    if (!isRead(message, read)) await queuey.markRead("q", [message]);
  }
  for await (const message of queuey.consume("billing", names, { patterns: "q-*", signal, onState: (state, error) => console.log(state, error?.code) })) {
    const { commit, queue_name }: { commit: () => Promise<boolean>; queue_name: string } = message;
    if (!message.signal.aborted && !(await commit())) console.log(queue_name);
  }
  const { messages, cursor }: { messages: Message[]; cursor: string } = await queuey.read("q", { since: 0 });
  return [cursor, ...messages.map((message) => message.message_id)];
}

export const outcome = (error: unknown): string => (error instanceof QueueyError ? error.outcome : "");

export const patient = new Queuey("https://queuey.example.com", "shop", { deadline: 600 });

// @ts-expect-error a body is needed
void queuey.send("q");
// @ts-expect-error no such option
void queuey.claim("q", { seconds: 3 });
// @ts-expect-error options come last
void queuey.delete("q", { signal: AbortSignal.timeout(1) }, "51783387e91e11f18080808080808080");
// @ts-expect-error no such option
void queuey.release("q", [], { timeout: 3 });
// @ts-expect-error a group is needed
void queuey.consume();
// @ts-expect-error a queue's name is text
void queuey.stream(7);
// @ts-expect-error the state is one of two words
void queuey.stream("q", { onState: (state: "closed") => state });
