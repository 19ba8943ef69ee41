// Every action of SQS for standard queues. Usage: node client.mjs DIRECTORY-OF-THE-SDK PART…; ENDPOINT is the URL.

import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { createRequire } from "node:module";
import { join } from "node:path";

const [, , directory, ...chosen] = process.argv;
const sdk = createRequire(join(directory, "package.json"))(directory);

const place = { endpoint: process.env.ENDPOINT, region: process.env.AWS_REGION, maxAttempts: 1 };
const client = new sdk.SQS(place);
const pause = (seconds) => new Promise((resolve) => setTimeout(resolve, 1000 * seconds));
const nameOf = (url) => url.split("/").at(-1);

let made = 0;
const prefix = `js${process.pid}-${Date.now()}-`;

async function newQueue(Attributes = {}, tags = undefined, begin = prefix) {
  const QueueName = `${begin}${made++}`;
  const { QueueUrl } = await client.createQueue({ QueueName, Attributes, tags });
  assert.equal(nameOf(QueueUrl), QueueName);
  return QueueUrl;
}

async function attributesOf(QueueUrl, ...AttributeNames) {
  return (await client.getQueueAttributes({ QueueUrl, AttributeNames })).Attributes;
}

async function receive(QueueUrl, more = {}) {
  const { Messages } = await client.receiveMessage({ QueueUrl, WaitTimeSeconds: 5, ...more });
  return Messages ?? [];
}

/** Receives until this many messages have arrived. */
async function receiveAll(QueueUrl, count, more = {}) {
  const found = [];
  while (found.length < count) {
    const some = await receive(QueueUrl, { MaxNumberOfMessages: 10, ...more });
    assert.ok(some.length, `only ${found.length} of ${count} messages came`);
    found.push(...some);
  }
  return found;
}

async function fails(promise, type, code = undefined) {
  const error = await promise.then(
    () => assert.fail(`this succeeded, and should have failed with ${type}`),
    (thrown) => thrown,
  );
  if (sdk[type] !== undefined) {
    assert.ok(error instanceof sdk[type], `${error.name} is no ${type}: ${error.stack}`);
  } else {
    assert.equal(error.name, type, error.stack);
  }
  assert.ok(error.message.length > 0);
  if (code !== undefined) assert.equal(error.Error?.Code ?? error.Code, code);
  assert.ok(error.$metadata.requestId, "the answer has no id");
  return error;
}

/** The digest of attributes, as Amazon describes it. */
function digestOf(attributes) {
  const hash = createHash("md5");
  const add = (content) => {
    const bytes = Buffer.from(content);
    const length = Buffer.alloc(4);
    length.writeUInt32BE(bytes.length);
    hash.update(length).update(bytes);
  };
  for (const name of Object.keys(attributes).sort()) {
    const { DataType, StringValue, BinaryValue } = attributes[name];
    add(name);
    add(DataType);
    hash.update(Buffer.from([BinaryValue === undefined ? 1 : 2]));
    add(BinaryValue ?? StringValue);
  }
  return hash.digest("hex");
}

const parts = {
  async queues() {
    const begin = `${prefix}list-`;
    const Attributes = {
      VisibilityTimeout: "45",
      DelaySeconds: "0",
      MaximumMessageSize: "2048",
      MessageRetentionPeriod: "3600",
      ReceiveMessageWaitTimeSeconds: "2",
    };
    const url = await newQueue(Attributes, { team: "α", empty: "" }, begin);
    const QueueName = nameOf(url);
    assert.equal((await client.createQueue({ QueueName, Attributes })).QueueUrl, url);
    assert.equal((await client.createQueue({ QueueName })).QueueUrl, url);
    await fails(client.createQueue({ QueueName, Attributes: { VisibilityTimeout: "46" } }), "QueueNameExists");
    assert.equal((await client.getQueueUrl({ QueueName })).QueueUrl, url);

    const all = await attributesOf(url, "All");
    for (const [name, value] of Object.entries(Attributes)) assert.equal(all[name], value, name);
    assert.equal(all.QueueArn.split(":").at(-1), QueueName);
    assert.equal(all.QueueArn.split(":")[3], place.region);
    assert.ok(Math.abs(Number(all.CreatedTimestamp) - Date.now() / 1000) < 60);
    assert.equal(all.ApproximateNumberOfMessages, "0");
    assert.equal(all.FifoQueue, undefined);
    await client.setQueueAttributes({ QueueUrl: url, Attributes: { VisibilityTimeout: "7", DelaySeconds: "3" } });
    assert.deepEqual(await attributesOf(url, "VisibilityTimeout", "DelaySeconds", "MaximumMessageSize"), {
      VisibilityTimeout: "7",
      DelaySeconds: "3",
      MaximumMessageSize: "2048",
    });

    assert.deepEqual((await client.listQueueTags({ QueueUrl: url })).Tags, { team: "α", empty: "" });
    await client.tagQueue({ QueueUrl: url, Tags: { team: "b", cost: "1" } });
    await client.untagQueue({ QueueUrl: url, TagKeys: ["empty", "unknown"] });
    assert.deepEqual((await client.listQueueTags({ QueueUrl: url })).Tags, { team: "b", cost: "1" });

    const urls = [url, ...(await Promise.all([1, 2, 3, 4].map(() => newQueue({}, {}, begin))))];
    assert.deepEqual((await client.listQueues({ QueueNamePrefix: begin })).QueueUrls.sort(), urls.sort());
    const pages = [];
    for await (const page of sdk.paginateListQueues({ client, pageSize: 2 }, { QueueNamePrefix: begin })) {
      pages.push(page.QueueUrls);
    }
    assert.deepEqual(pages.flat().sort(), urls);
    assert.ok(pages.every((page) => page.length <= 2));
    assert.deepEqual((await client.listQueues({ QueueNamePrefix: `${begin}none` })).QueueUrls ?? [], []);

    await Promise.all(urls.map((QueueUrl) => client.deleteQueue({ QueueUrl })));
    await fails(client.getQueueUrl({ QueueName }), "QueueDoesNotExist");
    assert.deepEqual((await client.listQueues({ QueueNamePrefix: begin })).QueueUrls ?? [], []);
  },

  async messages() {
    const QueueUrl = await newQueue();
    const waiting = receive(QueueUrl, { WaitTimeSeconds: 20 });
    await pause(0.3);
    const began = Date.now();
    const MessageBody = "äöü \u{1F600} <&>\"'\t\r\n{}";
    const first = await client.sendMessage({ QueueUrl, MessageBody });
    assert.equal(first.MD5OfMessageBody, createHash("md5").update(MessageBody).digest("hex"));
    assert.equal(first.MD5OfMessageAttributes, undefined);
    const [came] = await waiting;
    assert.ok(Date.now() - began < 5000, "a receive that waits is answered late");
    assert.deepEqual([came.MessageId, came.Body], [first.MessageId, MessageBody]);
    assert.deepEqual([came.Attributes, came.MessageAttributes], [undefined, undefined]);
    assert.deepEqual(await receive(QueueUrl, { WaitTimeSeconds: 0 }), []);
    const counted = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"];
    assert.deepEqual(Object.values(await attributesOf(QueueUrl, ...counted)), ["0", "1"]);
    await client.deleteMessage({ QueueUrl, ReceiptHandle: came.ReceiptHandle });
    await client.deleteMessage({ QueueUrl, ReceiptHandle: came.ReceiptHandle });

    const MessageAttributes = {
      text: { DataType: "String", StringValue: "ÿ€\u{1F600}" },
      "text.label": { DataType: "String.my label", StringValue: "1" },
      number: { DataType: "Number", StringValue: "-12.5e3" },
      "number.int": { DataType: "Number.int", StringValue: "7" },
      bytes: { DataType: "Binary", BinaryValue: Uint8Array.from(Array(256).keys()) },
      "bytes.png": { DataType: "Binary.png", BinaryValue: Uint8Array.of(0) },
    };
    const AWSTraceHeader = { DataType: "String", StringValue: "Root=1-5759e988-bd862e3fe1be46a994272793" };
    const sent = await client.sendMessage({
      QueueUrl,
      MessageBody: "b",
      MessageAttributes,
      MessageSystemAttributes: { AWSTraceHeader },
    });
    assert.equal(sent.MD5OfMessageAttributes, digestOf(MessageAttributes));
    assert.equal(sent.MD5OfMessageSystemAttributes, digestOf({ AWSTraceHeader }));
    const all = { MessageAttributeNames: ["All"], MessageSystemAttributeNames: ["All"], VisibilityTimeout: 0 };
    const [full] = await receive(QueueUrl, all);
    assert.deepEqual(Object.keys(full.MessageAttributes).sort(), Object.keys(MessageAttributes).sort());
    for (const [name, { DataType, StringValue, BinaryValue }] of Object.entries(MessageAttributes)) {
      assert.equal(full.MessageAttributes[name].DataType, DataType);
      assert.equal(full.MessageAttributes[name].StringValue, StringValue);
      assert.deepEqual(full.MessageAttributes[name].BinaryValue, BinaryValue);
    }
    assert.equal(full.MD5OfMessageAttributes, digestOf(MessageAttributes));
    assert.equal(full.Attributes.AWSTraceHeader, AWSTraceHeader.StringValue);
    assert.equal(full.Attributes.ApproximateReceiveCount, "1");
    assert.ok(Math.abs(Number(full.Attributes.SentTimestamp) - Date.now()) < 60_000);
    assert.ok(Number(full.Attributes.ApproximateFirstReceiveTimestamp) >= Number(full.Attributes.SentTimestamp));
    assert.ok(full.Attributes.SenderId);

    const MessageAttributeNames = ["text", "number.*", "unknown"];
    const [some] = await receive(QueueUrl, { MessageAttributeNames, AttributeNames: ["ApproximateReceiveCount"] });
    assert.deepEqual(some.Attributes, { ApproximateReceiveCount: "2" });
    assert.deepEqual(Object.keys(some.MessageAttributes).sort(), ["number", "number.int", "text"]);
    const { text, number, "number.int": int } = MessageAttributes;
    assert.equal(some.MD5OfMessageAttributes, digestOf({ text, number, "number.int": int }));
    assert.notEqual(some.ReceiptHandle, full.ReceiptHandle);

    const { ReceiptHandle } = some;
    await client.changeMessageVisibility({ QueueUrl, ReceiptHandle, VisibilityTimeout: 1 });
    assert.deepEqual(await receive(QueueUrl, { WaitTimeSeconds: 0 }), []);
    const [again] = await receive(QueueUrl);
    assert.equal(again.MessageId, sent.MessageId);
    const theirs = { QueueUrl, ReceiptHandle: again.ReceiptHandle, VisibilityTimeout: 0 };
    await client.changeMessageVisibility(theirs);
    const [last] = await receive(QueueUrl);
    await client.deleteMessage({ QueueUrl, ReceiptHandle: last.ReceiptHandle });

    await client.sendMessage({ QueueUrl, MessageBody: "later", DelaySeconds: 1 });
    assert.deepEqual(await receive(QueueUrl, { WaitTimeSeconds: 0 }), []);
    assert.equal((await attributesOf(QueueUrl, "All")).ApproximateNumberOfMessagesDelayed, "1");
    assert.equal((await receive(QueueUrl))[0].Body, "later");

    await Promise.all(["x", "y"].map((body) => client.sendMessage({ QueueUrl, MessageBody: body })));
    await client.purgeQueue({ QueueUrl });
    assert.deepEqual(await receive(QueueUrl, { WaitTimeSeconds: 1 }), []);
    await client.deleteQueue({ QueueUrl });
  },

  async batches() {
    const QueueUrl = await newQueue({ VisibilityTimeout: "20" });
    const ids = [...Array(10).keys()].map((number) => `id_-${number}`);
    const Entries = ids.map((Id) => ({ Id, MessageBody: `body of ${Id}` }));
    Entries[3].MessageAttributes = { n: { DataType: "Number", StringValue: "3" } };
    const sent = await client.sendMessageBatch({ QueueUrl, Entries });
    assert.deepEqual(sent.Successful.map(({ Id }) => Id), ids);
    assert.deepEqual(sent.Failed ?? [], []);
    assert.equal(sent.Successful[3].MD5OfMessageAttributes, digestOf(Entries[3].MessageAttributes));
    const came = await receiveAll(QueueUrl, 10);
    const sentIds = sent.Successful.map(({ MessageId }) => MessageId);
    assert.deepEqual(came.map(({ MessageId }) => MessageId).sort(), sentIds.sort());
    const entryOf = ({ ReceiptHandle }, index) => ({ Id: String(index), ReceiptHandle });

    const changes = came.map((one, index) => ({ ...entryOf(one, index), VisibilityTimeout: index % 2 ? 0 : 600 }));
    const [wrong] = changes.splice(9, 1, { ...changes[9], ReceiptHandle: "none" });
    const changed = await client.changeMessageVisibilityBatch({ QueueUrl, Entries: changes });
    assert.deepEqual(changed.Successful.map(({ Id }) => Id), [..."012345678"]);
    assert.deepEqual(changed.Failed.map(({ Id, Code, SenderFault }) => [Id, Code, SenderFault]), [
      [wrong.Id, "ReceiptHandleIsInvalid", true],
    ]);
    const again = await receiveAll(QueueUrl, 4);
    assert.equal(again.length, 4);

    const receipts = [...came.filter((_, index) => index % 2 === 0), ...again, came[9]].map(entryOf);
    receipts[4].ReceiptHandle = "none";
    const deleted = await client.deleteMessageBatch({ QueueUrl, Entries: receipts });
    assert.equal(deleted.Successful.length, 9);
    assert.deepEqual(deleted.Failed.map(({ Id, Code }) => [Id, Code]), [["4", "ReceiptHandleIsInvalid"]]);
    assert.ok(deleted.Failed[0].Message);

    const bad = { Id: "bad", MessageBody: "x", MessageAttributes: { n: { DataType: "Number", StringValue: "x" } } };
    const partly = await client.sendMessageBatch({ QueueUrl, Entries: [bad, { Id: "good", MessageBody: "x" }] });
    assert.deepEqual(partly.Successful.map(({ Id }) => Id), ["good"]);
    assert.deepEqual(partly.Failed.map(({ Id, Code, SenderFault }) => [Id, Code, SenderFault]), [
      ["bad", "InvalidParameterValue", true],
    ]);

    const send = (...entries) => client.sendMessageBatch({ QueueUrl, Entries: entries });
    const entry = (Id, MessageBody = "x") => ({ Id, MessageBody });
    await fails(send(), "EmptyBatchRequest", "AWS.SimpleQueueService.EmptyBatchRequest");
    await fails(send(...ids.map((id) => entry(id)), entry("eleven")), "TooManyEntriesInBatchRequest");
    await fails(send(entry("a"), entry("a")), "BatchEntryIdsNotDistinct");
    await fails(send(entry("a b")), "InvalidBatchEntryId");
    await fails(send(...["a", "b"].map((id) => entry(id, "x".repeat(600_000)))), "BatchRequestTooLong");
    const remove = (Entries) => client.deleteMessageBatch({ QueueUrl, Entries });
    await fails(remove([]), "EmptyBatchRequest");
    await fails(remove([receipts[0], receipts[0]]), "BatchEntryIdsNotDistinct");
    await client.deleteQueue({ QueueUrl });
  },

  async deadLetters() {
    const QueueUrl = await newQueue();
    const { QueueArn: deadLetterTargetArn } = await attributesOf(QueueUrl, "QueueArn");
    const policy = JSON.stringify({ deadLetterTargetArn, maxReceiveCount: 2 });
    const sources = [await newQueue({ VisibilityTimeout: "0" })];
    await client.setQueueAttributes({ QueueUrl: sources[0], Attributes: { RedrivePolicy: policy } });
    for (const _ of [1, 2]) sources.push(await newQueue({ RedrivePolicy: policy }));
    const { RedrivePolicy } = await attributesOf(sources[0], "RedrivePolicy");
    assert.deepEqual(JSON.parse(RedrivePolicy), JSON.parse(policy));
    const listed = [];
    const config = { client, pageSize: 2 };
    for await (const { queueUrls } of sdk.paginateListDeadLetterSourceQueues(config, { QueueUrl })) {
      assert.ok(queueUrls.length <= 2);
      listed.push(...queueUrls);
    }
    assert.deepEqual(listed.sort(), [...sources].sort());

    const source = sources[0];
    const { QueueArn: SourceArn } = await attributesOf(source, "QueueArn");
    const { MessageId } = await client.sendMessage({ QueueUrl: source, MessageBody: "poison" });
    for (const count of ["1", "2"]) {
      const [one] = await receive(source, { MessageSystemAttributeNames: ["ApproximateReceiveCount"] });
      assert.equal(one.Attributes.ApproximateReceiveCount, count);
    }
    assert.deepEqual(await receive(source, { WaitTimeSeconds: 1 }), []);
    const [dead] = await receive(QueueUrl, { MessageSystemAttributeNames: ["All"], VisibilityTimeout: 0 });
    assert.deepEqual([dead.Body, dead.Attributes.DeadLetterQueueSourceArn], ["poison", SourceArn]);
    assert.equal(dead.MessageId, MessageId, "a dead letter keeps its id");

    const { TaskHandle } = await client.startMessageMoveTask({
      SourceArn: deadLetterTargetArn,
      DestinationArn: SourceArn,
    });
    assert.ok(TaskHandle);
    let task;
    do {
      [task] = (await client.listMessageMoveTasks({ SourceArn: deadLetterTargetArn, MaxResults: 10 })).Results;
      await pause(0.1);
    } while (task.Status === "RUNNING");
    assert.deepEqual([task.Status, task.SourceArn, task.DestinationArn], ["COMPLETED", deadLetterTargetArn, SourceArn]);
    assert.equal(task.ApproximateNumberOfMessagesMoved, 1);
    assert.equal(task.TaskHandle, undefined);
    assert.ok(Math.abs(task.StartedTimestamp - Date.now()) < 60_000);
    assert.equal((await receive(source))[0].Body, "poison");
    const unknownTask = Buffer.from("none").toString("base64");
    await fails(client.cancelMessageMoveTask({ TaskHandle: unknownTask }), "ResourceNotFoundException");
    await fails(client.cancelMessageMoveTask({ TaskHandle: "none" }), "InvalidParameterValue");
    const unknown = `${SourceArn}-none`;
    await fails(client.startMessageMoveTask({ SourceArn: unknown }), "ResourceNotFoundException");
    await fails(client.listMessageMoveTasks({ SourceArn: unknown }), "ResourceNotFoundException");

    await client.setQueueAttributes({ QueueUrl: source, Attributes: { RedrivePolicy: "" } });
    assert.equal((await attributesOf(source, "All")).RedrivePolicy, undefined);
    const RedriveAllowPolicy = JSON.stringify({ redrivePermission: "denyAll" });
    await client.setQueueAttributes({ QueueUrl, Attributes: { RedriveAllowPolicy } });
    assert.deepEqual(await attributesOf(QueueUrl, "RedriveAllowPolicy"), { RedriveAllowPolicy });
    const denied = client.setQueueAttributes({ QueueUrl: source, Attributes: { RedrivePolicy: policy } });
    await fails(denied, "InvalidParameterValue");
    await Promise.all([QueueUrl, ...sources].map((url) => client.deleteQueue({ QueueUrl: url })));
  },

  async errors() {
    const QueueUrl = await newQueue();
    const gone = { QueueUrl: `${QueueUrl}-none` };
    const ReceiptHandle = "none";
    const code = "AWS.SimpleQueueService.NonExistentQueue";
    const calls = [
      client.sendMessage({ ...gone, MessageBody: "x" }),
      client.sendMessageBatch({ ...gone, Entries: [{ Id: "a", MessageBody: "x" }] }),
      client.receiveMessage(gone),
      client.deleteMessage({ ...gone, ReceiptHandle }),
      client.changeMessageVisibility({ ...gone, ReceiptHandle, VisibilityTimeout: 1 }),
      client.getQueueAttributes({ ...gone, AttributeNames: ["All"] }),
      client.setQueueAttributes({ ...gone, Attributes: { DelaySeconds: "1" } }),
      client.listQueueTags(gone),
      client.tagQueue({ ...gone, Tags: { a: "b" } }),
      client.listDeadLetterSourceQueues(gone),
      client.purgeQueue(gone),
      client.deleteQueue(gone),
      client.getQueueUrl({ QueueName: "none" }),
    ];
    await Promise.all(calls.map((call) => fails(call, "QueueDoesNotExist", code)));

    const handle = "ReceiptHandleIsInvalid";
    await fails(client.deleteMessage({ QueueUrl, ReceiptHandle }), handle);
    await fails(client.changeMessageVisibility({ QueueUrl, ReceiptHandle, VisibilityTimeout: 1 }), handle);
    await client.sendMessage({ QueueUrl, MessageBody: "x" });
    const [one] = await receive(QueueUrl);
    await client.deleteMessage({ QueueUrl, ReceiptHandle: one.ReceiptHandle });
    const late = { QueueUrl, ReceiptHandle: one.ReceiptHandle, VisibilityTimeout: 1 };
    await fails(client.changeMessageVisibility(late), "InvalidParameterValue");

    const set = (Attributes) => client.setQueueAttributes({ QueueUrl, Attributes });
    await fails(set({ Unknown: "1" }), "InvalidAttributeName");
    await fails(set({ DelaySeconds: "901" }), "InvalidAttributeValue");
    await fails(set({ RedrivePolicy: "{" }), "InvalidAttributeValue");
    await fails(client.getQueueAttributes({ QueueUrl, AttributeNames: ["Unknown"] }), "InvalidAttributeName");
    await fails(client.sendMessage({ QueueUrl, MessageBody: "\u0001" }), "InvalidMessageContents");
    await fails(client.sendMessage({ QueueUrl, MessageBody: "x", DelaySeconds: 901 }), "InvalidParameterValue");
    await fails(client.receiveMessage({ QueueUrl, MaxNumberOfMessages: 11 }), "InvalidParameterValue");
    await fails(client.createQueue({ QueueName: "no/name" }), "InvalidParameterValue");
    const permission = { QueueUrl, Label: "l", AWSAccountIds: ["000000000000"], Actions: ["*"] };
    await fails(client.addPermission(permission), "UnsupportedOperation");
    await fails(client.removePermission({ QueueUrl, Label: "l" }), "UnsupportedOperation");

    const { AWS_ACCESS_KEY_ID: accessKeyId, AWS_SECRET_ACCESS_KEY: secretAccessKey } = process.env;
    const other = (credentials) => new sdk.SQS({ ...place, credentials });
    const refused = async (credentials, name) => {
      const error = await fails(other(credentials).listQueues({}), name);
      assert.equal(error.$metadata.httpStatusCode, 403);
    };
    await refused({ accessKeyId, secretAccessKey: `${secretAccessKey}x` }, "SignatureDoesNotMatch");
    await refused({ accessKeyId: "AKIAIOSFODNN7EXAMPLE", secretAccessKey }, "InvalidClientTokenId");
    const unknown = accessKeyId.replace(/..$/, accessKeyId.endsWith("AA") ? "BB" : "AA");
    await refused({ accessKeyId: unknown, secretAccessKey }, "InvalidClientTokenId");
    await client.deleteQueue({ QueueUrl });
  },
};

await Promise.all(chosen.map((part) => parts[part]()));
client.destroy();
