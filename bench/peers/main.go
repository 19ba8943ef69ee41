// Command peers puts load on the queues and logs of others, each by its usual client in Go.
//
// It is called with the kind of server and an operation, and reads a plan as JSON from standard input. Callers wait for
// each call: to post is to wait until the messages are on the disk, to read is to ask for the next hundred, and a job is
// claimed and acknowledged alone. It prints one line of JSON.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// ReadSize is the number of messages that one read asks for.
const ReadSize = 100

// Plan says what to do.
type Plan struct {
	Address string
	Callers int
	Batch   int
	Bodies  []string
	Seconds float64
	Count   int // If not zero, the run ends with so many messages.
	Queues  int // Number of queues; each post is to a random one. Only for Postgres.
}

// Caller does one call after the other.
type Caller interface {
	// Post stores messages and returns when all are on the disk.
	Post(ctx context.Context, bodies []string) error
	// Read returns how many messages the next read gave.
	Read(ctx context.Context) (int, error)
	// Job claims a message and acknowledges it; it returns false if there was none.
	Job(ctx context.Context) (bool, error)
}

// Opener makes the callers of a run, once the queue is there.
type Opener func(ctx context.Context, plan Plan, operation string) ([]Caller, error)

var openers = map[string]Opener{
	"redis":    openRedis,
	"nats":     openNats,
	"rabbitmq": openRabbit,
	"kafka":    openKafka,
	"postgres": openPostgres,
}

// Result is what a run gave.
type Result struct {
	Messages int     `json:"messages"`
	Seconds  float64 `json:"seconds"`
	P50      float64 `json:"p50"`
	P99      float64 `json:"p99"`
	Longest  float64 `json:"longest"`
}

func main() {
	var plan Plan
	if err := json.NewDecoder(os.Stdin).Decode(&plan); err != nil {
		fail(err)
	}
	ctx := context.Background()
	callers, err := openers[os.Args[1]](ctx, plan, os.Args[2])
	if err != nil {
		fail(err)
	}
	if os.Args[2] == "post" {
		// The first message makes files and finds leaders.
		if err := callers[0].Post(ctx, plan.Bodies[:1]); err != nil {
			fail(err)
		}
	}
	result, err := run(ctx, plan, os.Args[2], callers)
	if err != nil {
		fail(err)
	}
	_ = json.NewEncoder(os.Stdout).Encode(result)
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// call does one call and returns the number of its messages.
func call(ctx context.Context, operation string, caller Caller, bodies []string) (int, error) {
	switch operation {
	case "post":
		return len(bodies), caller.Post(ctx, bodies)
	case "read":
		return caller.Read(ctx)
	case "job":
		found, err := caller.Job(ctx)
		if found {
			return 1, err
		}
		return 0, err
	}
	return 0, fmt.Errorf("unknown operation %q", operation)
}

// run lets all callers call until the time is over or there are enough messages.
func run(ctx context.Context, plan Plan, operation string, callers []Caller) (Result, error) {
	began := time.Now()
	ends := began.Add(time.Duration(plan.Seconds * float64(time.Second)))
	var total, last atomic.Int64
	var failure atomic.Pointer[error]
	times := make([][]time.Duration, len(callers))
	var group sync.WaitGroup
	for number, caller := range callers {
		group.Add(1)
		go func() {
			defer group.Done()
			batch := make([]string, plan.Batch)
			for at := number; failure.Load() == nil; at++ {
				start := time.Now()
				if start.After(ends) || (plan.Count > 0 && total.Load() >= int64(plan.Count)) {
					return
				}
				for place := range batch {
					batch[place] = plan.Bodies[(at*plan.Batch+place)%len(plan.Bodies)]
				}
				messages, err := call(ctx, operation, caller, batch)
				if err != nil {
					failure.CompareAndSwap(nil, &err)
					return
				}
				end := time.Now()
				total.Add(int64(messages))
				if messages > 0 {
					last.Store(max(last.Load(), end.UnixNano()))
					times[number] = append(times[number], end.Sub(start))
				}
			}
		}()
	}
	group.Wait()
	if err := failure.Load(); err != nil {
		return Result{}, *err
	}
	all := slices.Concat(times...)
	if len(all) == 0 {
		return Result{}, fmt.Errorf("no call gave messages")
	}
	slices.Sort(all)
	at := func(part float64) float64 {
		return float64(all[min(int(float64(len(all))*part), len(all)-1)].Microseconds()) / 1000
	}
	// To the end of the last call: those that were under way count whole.
	seconds := float64(last.Load()-began.UnixNano()) / 1e9
	return Result{int(total.Load()), seconds, at(0.5), at(0.99), at(1)}, nil
}
