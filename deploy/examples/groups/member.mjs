// A member of a consumer group: it shares the partitions of a queue with other members, in whatever language they are.
//     API=http://127.0.0.1:5000/v1/queuey KEY=… node member.mjs GROUP QUEUE
import { setTimeout as sleep } from "node:timers/promises";
const [group, queue] = process.argv.slice(2);
const SESSION = 6; // Seconds without a heartbeat until others take over. Each message has to be handled within them.
let isRunning = true;
for (const name of ["SIGINT", "SIGTERM"]) process.on(name, () => (isRunning = false));

function handle({ partition, message_id, body }) {
  console.log(partition, message_id, body);
}

async function call(method, path, body) {
  const headers = { Authorization: `Application ${process.env.KEY}`, "Content-Type": "application/json" };
  const options = { method, headers, body: body && JSON.stringify(body), signal: AbortSignal.timeout(SESSION * 1000) };
  const answer = await fetch(process.env.API + path, options);
  if (!answer.ok) throw new Error(await answer.text());
  return answer.json();
}

// By two clocks: one may stand still while the machine sleeps, and the other may be set.
const now = () => [performance.now(), Date.now()];
const secondsSince = ([steady, wall]) => Math.max(performance.now() - steady, Date.now() - wall) / 1000;

async function beMember(owned = {}, givenBack = {}) {
  let sent = now();
  let { member, session, wait } = await call("POST", `/_groups/${group}/members`, { queues: [queue], session: SESSION });
  const path = `/_groups/${group}/members/${member}`;
  for (let isGone = false; isRunning && !isGone && secondsSince(sent) < session; ) {
    try {
      const began = now();
      const epochs = Object.fromEntries(Object.entries(owned).map(([partition, { epoch }]) => [partition, epoch]));
      const beat = await call("POST", path, { owned: { [queue]: epochs }, given_back: { [queue]: givenBack } });
      if (secondsSince(sent) >= session) break; // An answer after the end of the session counts as none.
      [sent, session, wait, givenBack] = [began, beat.session, beat.wait, {}];
      for (const partition of beat.lost[queue] ?? []) delete owned[partition];
      Object.assign(owned, beat.take[queue]);
      for (const [partition, { epoch }] of Object.entries(beat.give_back[queue] ?? {})) {
        givenBack[partition] = epoch; // The next heartbeat says so.
        delete owned[partition];
      }
      const partitions = Object.keys(owned);
      const after = partitions.filter((each) => owned[each].offset).map((each) => `${each}:${owned[each].offset}`);
      const { messages } = await call("GET", `/${queue}?wait=1&partitions=${partitions}&after=${after}`);
      for (const message of messages) {
        if (!isRunning || secondsSince(sent) >= wait) break; // A heartbeat is due. The rest is read again after it.
        handle(message);
        const commit = { offset: message.message_id, epoch: owned[message.partition].epoch };
        await call("PUT", `/${queue}/offsets/${group}`, { member, commits: { [message.partition]: commit } });
        owned[message.partition].offset = commit.offset;
      }
    } catch (error) {
      console.error(error.message); // If a commit was refused, the next heartbeat says what is lost.
      isGone = error.message.includes("MemberGone");
      await sleep(200);
    }
  }
  await call("DELETE", path).catch(() => {}); // So the others need not wait for the end of the session.
}
while (isRunning) await beMember().catch((error) => sleep(1000, console.error(error.message)));
