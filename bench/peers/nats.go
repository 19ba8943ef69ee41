package main

import (
	"context"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const natsSubject = "bench"

type natsCaller struct {
	stream   jetstream.JetStream
	consumer jetstream.Consumer
}

func openNats(ctx context.Context, plan Plan, operation string) ([]Caller, error) {
	callers := make([]Caller, plan.Callers)
	for number := range callers {
		connection, err := nats.Connect(plan.Address)
		if err != nil {
			return nil, err
		}
		stream, err := jetstream.New(connection)
		if err != nil {
			return nil, err
		}
		kept := jetstream.StreamConfig{Name: "bench", Subjects: []string{natsSubject}, Storage: jetstream.FileStorage}
		if _, err := stream.CreateOrUpdateStream(ctx, kept); err != nil {
			return nil, err
		}
		caller := &natsCaller{stream: stream}
		switch operation {
		case "read":
			caller.consumer, err = stream.OrderedConsumer(ctx, "bench", jetstream.OrderedConsumerConfig{})
		case "job":
			caller.consumer, err = stream.CreateOrUpdateConsumer(ctx, "bench", jetstream.ConsumerConfig{
				Durable: "workers", AckPolicy: jetstream.AckExplicitPolicy, MaxAckPending: 100_000,
			})
		}
		if err != nil {
			return nil, err
		}
		callers[number] = caller
	}
	return callers, nil
}

func (caller *natsCaller) Post(ctx context.Context, bodies []string) error {
	if len(bodies) == 1 {
		_, err := caller.stream.Publish(ctx, natsSubject, []byte(bodies[0]))
		return err
	}
	futures := make([]jetstream.PubAckFuture, len(bodies))
	for place, body := range bodies {
		future, err := caller.stream.PublishAsync(natsSubject, []byte(body))
		if err != nil {
			return err
		}
		futures[place] = future
	}
	for _, future := range futures {
		select {
		case <-future.Ok():
		case err := <-future.Err():
			return err
		}
	}
	return nil
}

func (caller *natsCaller) fetch(count int) (int, jetstream.Msg, error) {
	batch, err := caller.consumer.Fetch(count, jetstream.FetchMaxWait(time.Second))
	if err != nil {
		return 0, nil, err
	}
	found := 0
	var last jetstream.Msg
	for message := range batch.Messages() {
		found++
		last = message
	}
	return found, last, batch.Error()
}

func (caller *natsCaller) Read(context.Context) (int, error) {
	found, _, err := caller.fetch(ReadSize)
	return found, err
}

func (caller *natsCaller) Job(ctx context.Context) (bool, error) {
	found, message, err := caller.fetch(1)
	if err != nil || found == 0 {
		return false, err
	}
	return true, message.DoubleAck(ctx)
}
