package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	redisStream = "bench"
	redisGroup  = "workers"
)

type redisCaller struct {
	client *redis.Client
	name   string
	last   string
}

func openRedis(ctx context.Context, plan Plan, operation string) ([]Caller, error) {
	options, err := redis.ParseURL(plan.Address)
	if err != nil {
		return nil, err
	}
	options.PoolSize = plan.Callers
	options.ReadTimeout = time.Minute
	client := redis.NewClient(options)
	if operation == "job" {
		err := client.XGroupCreateMkStream(ctx, redisStream, redisGroup, "0").Err()
		if err != nil && !redis.HasErrorPrefix(err, "BUSYGROUP") {
			return nil, err
		}
	}
	callers := make([]Caller, plan.Callers)
	for number := range callers {
		callers[number] = &redisCaller{client, fmt.Sprint(number), "-"}
	}
	return callers, nil
}

func (caller *redisCaller) Post(ctx context.Context, bodies []string) error {
	add := func(body string) *redis.XAddArgs {
		return &redis.XAddArgs{Stream: redisStream, Values: []string{"body", body}}
	}
	if len(bodies) == 1 {
		return caller.client.XAdd(ctx, add(bodies[0])).Err()
	}
	_, err := caller.client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for _, body := range bodies {
			pipe.XAdd(ctx, add(body))
		}
		return nil
	})
	return err
}

func (caller *redisCaller) Read(ctx context.Context) (int, error) {
	found, err := caller.client.XRangeN(ctx, redisStream, caller.last, "+", ReadSize).Result()
	if err != nil {
		return 0, err
	}
	caller.last = "-"
	if len(found) == ReadSize {
		caller.last = "(" + found[len(found)-1].ID
	}
	return len(found), nil
}

func (caller *redisCaller) Job(ctx context.Context) (bool, error) {
	asked := &redis.XReadGroupArgs{
		Group: redisGroup, Consumer: caller.name, Streams: []string{redisStream, ">"}, Count: 1, Block: -1,
	}
	found, err := caller.client.XReadGroup(ctx, asked).Result()
	if errors.Is(err, redis.Nil) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return true, caller.client.XAck(ctx, redisStream, redisGroup, found[0].Messages[0].ID).Err()
}
