// Every action of SQS for standard queues, by the SDK for Go. ENDPOINT is the URL of the service.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/aws/smithy-go"
)

var (
	ctx    = context.Background()
	key    = os.Getenv("AWS_ACCESS_KEY_ID")
	secret = os.Getenv("AWS_SECRET_ACCESS_KEY")
	region = os.Getenv("AWS_REGION")
	client = newClient(key, secret)
	prefix = fmt.Sprintf("go%d-%d-", os.Getpid(), time.Now().UnixMilli())
	made   atomic.Int32
)

func newClient(key, secret string) *sqs.Client {
	return sqs.New(sqs.Options{
		BaseEndpoint:     aws.String(os.Getenv("ENDPOINT")),
		Region:           region,
		Credentials:      credentials.NewStaticCredentialsProvider(key, secret, ""),
		RetryMaxAttempts: 1,
	})
}

// must returns a result, or ends the program.
func must[T any](result T, err error) T {
	if err != nil {
		fail(err)
	}
	return result
}

func check(ok bool, what ...any) {
	if !ok {
		fail(what...)
	}
}

func fail(what ...any) {
	fmt.Fprintln(os.Stderr, what...)
	debug.PrintStack()
	os.Exit(1)
}

// fails checks that a call has failed with an error of this type.
func fails[E error, T any](_ T, err error) {
	var wanted E
	check(errors.As(err, &wanted), fmt.Sprintf("%T was expected, and not: %v", wanted, err))
}

// failsWith checks for an error without a type of its own, by its code.
func failsWith[T any](_ T, err error) func(code string) {
	return func(code string) {
		var found smithy.APIError
		check(errors.As(err, &found) && found.ErrorCode() == code, code, "was expected, and not:", err)
	}
}

func newQueue(attributes map[string]string) *string {
	name := fmt.Sprintf("%s%03d", prefix, made.Add(1))
	input := &sqs.CreateQueueInput{QueueName: &name, Attributes: attributes}
	return must(client.CreateQueue(ctx, input)).QueueUrl
}

func attributeOf(url *string, name types.QueueAttributeName) string {
	input := &sqs.GetQueueAttributesInput{QueueUrl: url, AttributeNames: []types.QueueAttributeName{name}}
	return must(client.GetQueueAttributes(ctx, input)).Attributes[string(name)]
}

func set(url *string, name, value string) (*sqs.SetQueueAttributesOutput, error) {
	input := &sqs.SetQueueAttributesInput{QueueUrl: url, Attributes: map[string]string{name: value}}
	return client.SetQueueAttributes(ctx, input)
}

func send(url *string, body string) *sqs.SendMessageOutput {
	return must(client.SendMessage(ctx, &sqs.SendMessageInput{QueueUrl: url, MessageBody: aws.String(body)}))
}

func receive(url *string, wait int32) []types.Message {
	return must(client.ReceiveMessage(ctx, &sqs.ReceiveMessageInput{
		QueueUrl:                    url,
		MaxNumberOfMessages:         10,
		WaitTimeSeconds:             wait,
		MessageAttributeNames:       []string{"All"},
		MessageSystemAttributeNames: []types.MessageSystemAttributeName{types.MessageSystemAttributeNameAll},
	})).Messages
}

func receiveOne(url *string) types.Message {
	found := receive(url, 10)
	check(len(found) == 1, "messages:", len(found))
	return found[0]
}

func deleteQueues(urls ...*string) {
	var calls []func()
	for _, url := range urls {
		calls = append(calls, func() { must(client.DeleteQueue(ctx, &sqs.DeleteQueueInput{QueueUrl: url})) })
	}
	together(calls...)
}

func together(calls ...func()) {
	var group sync.WaitGroup
	for _, call := range calls {
		group.Add(1)
		go func() {
			defer group.Done()
			call()
		}()
	}
	group.Wait()
}

func queues() {
	url := newQueue(map[string]string{"VisibilityTimeout": "45", "MessageRetentionPeriod": "3600"})
	name := aws.String((*url)[strings.LastIndex(*url, "/")+1:])
	same := &sqs.CreateQueueInput{QueueName: name, Attributes: map[string]string{"VisibilityTimeout": "45"}}
	check(*must(client.CreateQueue(ctx, same)).QueueUrl == *url)
	same.Attributes["VisibilityTimeout"] = "46"
	fails[*types.QueueNameExists](client.CreateQueue(ctx, same))
	check(*must(client.GetQueueUrl(ctx, &sqs.GetQueueUrlInput{QueueName: name})).QueueUrl == *url)
	must(set(url, "VisibilityTimeout", "7"))
	check(attributeOf(url, "VisibilityTimeout") == "7")
	check(strings.HasSuffix(attributeOf(url, "QueueArn"), ":"+*name))

	tags := map[string]string{"team": "α", "empty": ""}
	must(client.TagQueue(ctx, &sqs.TagQueueInput{QueueUrl: url, Tags: tags}))
	must(client.UntagQueue(ctx, &sqs.UntagQueueInput{QueueUrl: url, TagKeys: []string{"empty"}}))
	found := must(client.ListQueueTags(ctx, &sqs.ListQueueTagsInput{QueueUrl: url})).Tags
	check(len(found) == 1 && found["team"] == "α", found)

	urls := []*string{url}
	for number := range 4 {
		input := &sqs.CreateQueueInput{QueueName: aws.String(fmt.Sprintf("%s-%d", *name, number))}
		urls = append(urls, must(client.CreateQueue(ctx, input)).QueueUrl)
	}
	pages := sqs.NewListQueuesPaginator(client, &sqs.ListQueuesInput{QueueNamePrefix: name, MaxResults: aws.Int32(2)})
	var listed []string
	for pages.HasMorePages() {
		page := must(pages.NextPage(ctx)).QueueUrls
		check(len(page) <= 2)
		listed = append(listed, page...)
	}
	slices.Sort(listed)
	check(len(slices.Compact(listed)) == len(urls), listed)
	deleteQueues(urls...)
	fails[*types.QueueDoesNotExist](client.GetQueueUrl(ctx, &sqs.GetQueueUrlInput{QueueName: name}))
}

func messages() {
	url := newQueue(nil)
	sent := must(client.SendMessage(ctx, &sqs.SendMessageInput{
		QueueUrl:    url,
		MessageBody: aws.String("äöü \U0001F600 <&>\"'\t\r\n"),
		MessageAttributes: map[string]types.MessageAttributeValue{
			"text":   {DataType: aws.String("String.own"), StringValue: aws.String("ÿ€")},
			"number": {DataType: aws.String("Number"), StringValue: aws.String("-1.5")},
			"bytes":  {DataType: aws.String("Binary"), BinaryValue: []byte{0, 1, 255}},
		},
		MessageSystemAttributes: map[string]types.MessageSystemAttributeValue{
			"AWSTraceHeader": {DataType: aws.String("String"), StringValue: aws.String("Root=1-5759e988-bd862e3f")},
		},
	}))
	came := receiveOne(url)
	check(*came.MessageId == *sent.MessageId && *came.MD5OfMessageAttributes == *sent.MD5OfMessageAttributes)
	check(len(came.MessageAttributes) == 3 && string(came.MessageAttributes["bytes"].BinaryValue) == "\x00\x01\xff")
	check(*came.MessageAttributes["text"].DataType == "String.own" && *came.MessageAttributes["text"].StringValue == "ÿ€")
	check(came.Attributes["ApproximateReceiveCount"] == "1", came.Attributes)
	check(came.Attributes["AWSTraceHeader"] == "Root=1-5759e988-bd862e3f")
	check(len(receive(url, 0)) == 0)
	change := &sqs.ChangeMessageVisibilityInput{QueueUrl: url, ReceiptHandle: came.ReceiptHandle, VisibilityTimeout: 0}
	must(client.ChangeMessageVisibility(ctx, change))
	again := receiveOne(url)
	check(again.Attributes["ApproximateReceiveCount"] == "2")
	must(client.DeleteMessage(ctx, &sqs.DeleteMessageInput{QueueUrl: url, ReceiptHandle: again.ReceiptHandle}))

	began := time.Now()
	time.AfterFunc(300*time.Millisecond, func() { send(url, "late") })
	check(*receiveOne(url).Body == "late" && time.Since(began) < 5*time.Second, time.Since(began))
	delayed := &sqs.SendMessageInput{QueueUrl: url, MessageBody: aws.String("x"), DelaySeconds: 1}
	must(client.SendMessage(ctx, delayed))
	check(len(receive(url, 0)) == 0)
	check(attributeOf(url, "ApproximateNumberOfMessagesDelayed") == "1")
	receiveOne(url)
	send(url, "purged")
	must(client.PurgeQueue(ctx, &sqs.PurgeQueueInput{QueueUrl: url}))
	check(len(receive(url, 1)) == 0)
	deleteQueues(url)
}

func batches() {
	url := newQueue(nil)
	var entries []types.SendMessageBatchRequestEntry
	for number := range 10 {
		id := aws.String(fmt.Sprint(number))
		entries = append(entries, types.SendMessageBatchRequestEntry{Id: id, MessageBody: id})
	}
	batch := &sqs.SendMessageBatchInput{QueueUrl: url, Entries: entries}
	check(len(must(client.SendMessageBatch(ctx, batch)).Successful) == 10)
	var came []types.Message
	for len(came) < 10 {
		some := receive(url, 5)
		check(len(some) > 0, "only", len(came), "came")
		came = append(came, some...)
	}
	var changes []types.ChangeMessageVisibilityBatchRequestEntry
	var deletes []types.DeleteMessageBatchRequestEntry
	for number, one := range came {
		id := aws.String(fmt.Sprint(number))
		changes = append(changes, types.ChangeMessageVisibilityBatchRequestEntry{
			Id: id, ReceiptHandle: one.ReceiptHandle, VisibilityTimeout: int32(60 + number),
		})
		deletes = append(deletes, types.DeleteMessageBatchRequestEntry{Id: id, ReceiptHandle: one.ReceiptHandle})
	}
	changed := must(client.ChangeMessageVisibilityBatch(ctx, &sqs.ChangeMessageVisibilityBatchInput{
		QueueUrl: url, Entries: changes,
	}))
	check(len(changed.Successful) == 10 && len(changed.Failed) == 0, changed.Failed)
	deletes[3].ReceiptHandle = aws.String("none")
	deleted := must(client.DeleteMessageBatch(ctx, &sqs.DeleteMessageBatchInput{QueueUrl: url, Entries: deletes}))
	check(len(deleted.Successful) == 9 && len(deleted.Failed) == 1)
	check(*deleted.Failed[0].Id == "3" && *deleted.Failed[0].Code == "ReceiptHandleIsInvalid" && deleted.Failed[0].SenderFault)

	batch.Entries = append(entries, entries[0])
	fails[*types.TooManyEntriesInBatchRequest](client.SendMessageBatch(ctx, batch))
	batch.Entries = []types.SendMessageBatchRequestEntry{entries[0], entries[0]}
	fails[*types.BatchEntryIdsNotDistinct](client.SendMessageBatch(ctx, batch))
	batch.Entries = []types.SendMessageBatchRequestEntry{{Id: aws.String("a b"), MessageBody: aws.String("x")}}
	fails[*types.InvalidBatchEntryId](client.SendMessageBatch(ctx, batch))
	batch.Entries = []types.SendMessageBatchRequestEntry{}
	fails[*types.EmptyBatchRequest](client.SendMessageBatch(ctx, batch))
	deleteQueues(url)
}

func deadLetters() {
	dead := newQueue(nil)
	target := attributeOf(dead, "QueueArn")
	policy := string(must(json.Marshal(map[string]any{"deadLetterTargetArn": target, "maxReceiveCount": 1})))
	url := newQueue(map[string]string{"RedrivePolicy": policy, "VisibilityTimeout": "0"})
	other := newQueue(map[string]string{"RedrivePolicy": policy})
	sources := sqs.NewListDeadLetterSourceQueuesPaginator(client, &sqs.ListDeadLetterSourceQueuesInput{
		QueueUrl: dead, MaxResults: aws.Int32(1),
	})
	var listed []string
	for sources.HasMorePages() {
		listed = append(listed, must(sources.NextPage(ctx)).QueueUrls...)
	}
	check(slices.Contains(listed, *url) && slices.Contains(listed, *other) && len(listed) == 2, listed)

	sent := send(url, "poison")
	receiveOne(url)
	check(len(receive(url, 1)) == 0)
	letter := receiveOne(dead)
	check(*letter.MessageId == *sent.MessageId)
	arn := attributeOf(url, "QueueArn")
	check(letter.Attributes["DeadLetterQueueSourceArn"] == arn)
	must(client.ChangeMessageVisibility(ctx, &sqs.ChangeMessageVisibilityInput{
		QueueUrl: dead, ReceiptHandle: letter.ReceiptHandle, VisibilityTimeout: 0,
	}))
	start := &sqs.StartMessageMoveTaskInput{SourceArn: &target, DestinationArn: &arn}
	check(*must(client.StartMessageMoveTask(ctx, start)).TaskHandle != "")
	for {
		tasks := &sqs.ListMessageMoveTasksInput{SourceArn: &target}
		task := must(client.ListMessageMoveTasks(ctx, tasks)).Results[0]
		if *task.Status != "RUNNING" {
			check(*task.Status == "COMPLETED" && task.ApproximateNumberOfMessagesMoved == 1, *task.Status)
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	check(*receiveOne(url).Body == "poison")
	none := aws.String(target + "-none")
	fails[*types.ResourceNotFoundException](client.StartMessageMoveTask(ctx, &sqs.StartMessageMoveTaskInput{SourceArn: none}))
	handle := aws.String("bm9uZQ==")
	fails[*types.ResourceNotFoundException](
		client.CancelMessageMoveTask(ctx, &sqs.CancelMessageMoveTaskInput{TaskHandle: handle}))
	deleteQueues(dead, url, other)
}

func failures() {
	url := newQueue(nil)
	gone := aws.String(*url + "-none")
	fails[*types.QueueDoesNotExist](client.ReceiveMessage(ctx, &sqs.ReceiveMessageInput{QueueUrl: gone}))
	fails[*types.QueueDoesNotExist](client.DeleteQueue(ctx, &sqs.DeleteQueueInput{QueueUrl: gone}))
	message := &sqs.SendMessageInput{QueueUrl: gone, MessageBody: aws.String("x")}
	fails[*types.QueueDoesNotExist](client.SendMessage(ctx, message))
	message = &sqs.SendMessageInput{QueueUrl: url, MessageBody: aws.String("\x01")}
	fails[*types.InvalidMessageContents](client.SendMessage(ctx, message))
	handle := aws.String("none")
	fails[*types.ReceiptHandleIsInvalid](
		client.DeleteMessage(ctx, &sqs.DeleteMessageInput{QueueUrl: url, ReceiptHandle: handle}))
	fails[*types.InvalidAttributeName](set(url, "Unknown", "1"))
	fails[*types.InvalidAttributeValue](set(url, "DelaySeconds", "901"))
	fails[*types.UnsupportedOperation](client.AddPermission(ctx, &sqs.AddPermissionInput{
		QueueUrl: url, Label: aws.String("l"), AWSAccountIds: []string{"000000000000"}, Actions: []string{"*"},
	}))
	fails[*types.UnsupportedOperation](client.RemovePermission(ctx, &sqs.RemovePermissionInput{
		QueueUrl: url, Label: aws.String("l"),
	}))
	many := &sqs.ReceiveMessageInput{QueueUrl: url, MaxNumberOfMessages: 11}
	failsWith(client.ReceiveMessage(ctx, many))("InvalidParameterValue")
	list := &sqs.ListQueuesInput{}
	failsWith(newClient(key, secret+"x").ListQueues(ctx, list))("SignatureDoesNotMatch")
	failsWith(newClient("AKIAIOSFODNN7EXAMPLE", secret).ListQueues(ctx, list))("InvalidClientTokenId")
	deleteQueues(url)
}

func main() {
	together(queues, messages, batches, deadLetters, failures)
}
