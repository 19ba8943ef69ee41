package main

import (
	"context"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

const rabbitQueue = "bench"

type rabbitCaller struct {
	channel    *amqp.Channel
	deliveries <-chan amqp.Delivery
}

func openRabbit(_ context.Context, plan Plan, operation string) ([]Caller, error) {
	callers := make([]Caller, plan.Callers)
	for number := range callers {
		connection, err := amqp.Dial(plan.Address)
		if err != nil {
			return nil, err
		}
		channel, err := connection.Channel()
		if err != nil {
			return nil, err
		}
		if _, err := channel.QueueDeclare(rabbitQueue, true, false, false, false, amqp.Table{"x-queue-type": "quorum"}); err != nil {
			return nil, err
		}
		caller := &rabbitCaller{channel: channel}
		if operation == "job" {
			if err := channel.Qos(1, 0, false); err != nil {
				return nil, err
			}
			caller.deliveries, err = channel.Consume(rabbitQueue, fmt.Sprint(number), false, false, false, false, nil)
		} else {
			err = channel.Confirm(false)
		}
		if err != nil {
			return nil, err
		}
		callers[number] = caller
	}
	return callers, nil
}

func (caller *rabbitCaller) Post(ctx context.Context, bodies []string) error {
	waiting := make([]*amqp.DeferredConfirmation, len(bodies))
	for place, body := range bodies {
		message := amqp.Publishing{DeliveryMode: amqp.Persistent, Body: []byte(body)}
		sent, err := caller.channel.PublishWithDeferredConfirmWithContext(ctx, "", rabbitQueue, false, false, message)
		if err != nil {
			return err
		}
		waiting[place] = sent
	}
	for _, sent := range waiting {
		if confirmed, err := sent.WaitContext(ctx); err != nil || !confirmed {
			return fmt.Errorf("not confirmed: %w", err)
		}
	}
	return nil
}

func (caller *rabbitCaller) Read(context.Context) (int, error) {
	return 0, fmt.Errorf("a queue of RabbitMQ cannot be read without removing messages")
}

func (caller *rabbitCaller) Job(context.Context) (bool, error) {
	select {
	case delivery := <-caller.deliveries:
		return true, delivery.Ack(false)
	case <-time.After(100 * time.Millisecond):
		return false, nil
	}
}
