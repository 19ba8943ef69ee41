package main

import (
	"context"
	"errors"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	kafkaTopic      = "bench"
	kafkaPartitions = 4
)

// kafkaWait is how long a read waits before it begins again from the start of the topic.
const kafkaWait = 100 * time.Millisecond

type kafkaCaller struct {
	client *kgo.Client
}

func openKafka(ctx context.Context, plan Plan, operation string) ([]Caller, error) {
	options := []kgo.Opt{
		kgo.SeedBrokers(plan.Address),
		kgo.DefaultProduceTopic(kafkaTopic),
		kgo.ProducerLinger(0),
		kgo.ProducerBatchCompression(kgo.NoCompression()),
	}
	if operation == "read" {
		start := kgo.NewOffset().AtStart()
		options = append(options, kgo.ConsumeTopics(kafkaTopic), kgo.ConsumeResetOffset(start))
	}
	// One client, as of one program: it sends what its callers post at the same time together.
	client, err := kgo.NewClient(options...)
	if err != nil {
		return nil, err
	}
	flushed := "1"
	settings := map[string]*string{"flush.messages": &flushed}
	answer, err := kadm.NewClient(client).CreateTopic(ctx, kafkaPartitions, 1, settings, kafkaTopic)
	if err != nil && !errors.Is(answer.Err, kerr.TopicAlreadyExists) {
		return nil, err
	}
	callers := make([]Caller, plan.Callers)
	for number := range callers {
		callers[number] = &kafkaCaller{client}
	}
	return callers, nil
}

func (caller *kafkaCaller) Post(ctx context.Context, bodies []string) error {
	records := make([]*kgo.Record, len(bodies))
	for place, body := range bodies {
		records[place] = kgo.StringRecord(body)
	}
	return caller.client.ProduceSync(ctx, records...).FirstErr()
}

func (caller *kafkaCaller) Read(ctx context.Context) (int, error) {
	waiting, cancel := context.WithTimeout(ctx, kafkaWait)
	defer cancel()
	fetches := caller.client.PollRecords(waiting, ReadSize)
	if errors.Is(fetches.Err(), context.DeadlineExceeded) {
		start := map[int32]kgo.EpochOffset{}
		for partition := range int32(kafkaPartitions) {
			start[partition] = kgo.EpochOffset{Epoch: -1, Offset: 0}
		}
		caller.client.SetOffsets(map[string]map[int32]kgo.EpochOffset{kafkaTopic: start})
		return 0, nil
	}
	return fetches.NumRecords(), fetches.Err()
}

func (caller *kafkaCaller) Job(context.Context) (bool, error) {
	return false, errors.New("a topic of Kafka has no claims here")
}
