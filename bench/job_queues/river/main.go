// River on SQLite: "river work FILE" runs a worker, "river send FILE" obeys the lines of its standard input.
//
// Each line is "send TASK A B", "many TASK A B COUNT", "reset" or "pending", and is answered by a line with a number,
// when what was sent is on the disk.
package main

import (
	"bufio"
	"context"
	"database/sql"
	"encoding/binary"
	"fmt"
	"log"
	"log/slog"
	"math"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riversqlite"
	"github.com/riverqueue/river/rivermigrate"
	_ "modernc.org/sqlite"
)

const (
	queue          = "bench"
	clockMonotonic = 1
	pragmas        = "?_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)&_txlock=immediate"
	pending        = "SELECT count(*) FROM river_job WHERE finalized_at IS NULL"
	maxWorkers     = 100 // as River's own examples have it
)

type countedArgs struct {
	Port  int   `json:"port"`
	Total int64 `json:"total"`
}

func (countedArgs) Kind() string { return "counted" }

type timedArgs struct {
	Port int     `json:"port"`
	Sent float64 `json:"sent"`
}

func (timedArgs) Kind() string { return "timed" }

var handled atomic.Int64

func counted(_ context.Context, job *river.Job[countedArgs]) error {
	if number := handled.Add(1); number == 1 || number == job.Args.Total {
		tell(job.Args.Port, monotonic())
	}
	return nil
}

func timed(_ context.Context, job *river.Job[timedArgs]) error {
	tell(job.Args.Port, monotonic()-job.Args.Sent)
	return nil
}

// monotonic returns the seconds of the machine's clock that Python's time.monotonic shows.
func monotonic() float64 {
	var now syscall.Timespec
	syscall.Syscall(syscall.SYS_CLOCK_GETTIME, clockMonotonic, uintptr(unsafe.Pointer(&now)), 0)
	return float64(now.Sec) + float64(now.Nsec)/1e9
}

func tell(port int, value float64) {
	to := &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port}
	connection := must(net.DialUDP("udp", nil, to))
	defer connection.Close()
	must(connection.Write(binary.NativeEndian.AppendUint64(nil, math.Float64bits(value))))
}

func args(task string, port int, value float64) river.JobArgs {
	if task == "timed" {
		return timedArgs{port, value}
	}
	return countedArgs{port, int64(value)}
}

func must[T any](value T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return value
}

func main() {
	ctx := context.Background()
	pool := must(sql.Open("sqlite", "file:"+os.Args[2]+pragmas))
	pool.SetMaxOpenConns(1) // as its driver advises
	driver := riversqlite.New(pool)
	must(must(rivermigrate.New(driver, nil)).Migrate(ctx, rivermigrate.DirectionUp, nil))
	workers := river.NewWorkers()
	river.AddWorker(workers, river.WorkFunc(counted))
	river.AddWorker(workers, river.WorkFunc(timed))
	config := &river.Config{
		Workers: workers,
		Queues:  map[string]river.QueueConfig{queue: {MaxWorkers: maxWorkers}},
		Logger:  slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	}
	client := must(river.NewClient(driver, config))
	if os.Args[1] == "work" {
		if err := client.Start(ctx); err != nil {
			log.Fatal(err)
		}
		<-client.Stopped()
		return
	}
	obey(ctx, pool, client)
}

func obey(ctx context.Context, pool *sql.DB, client *river.Client[*sql.Tx]) {
	options := &river.InsertOpts{Queue: queue}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var command, task string
		var port, count int
		var value float64
		fmt.Sscan(lines.Text(), &command, &task, &port, &value, &count)
		answer := 0
		switch command {
		case "send":
			must(client.Insert(ctx, args(task, port, value), options))
		case "many":
			jobs := make([]river.InsertManyParams, count)
			for at := range jobs {
				jobs[at] = river.InsertManyParams{Args: args(task, port, value), InsertOpts: options}
			}
			must(client.InsertMany(ctx, jobs))
		case "reset":
			must(pool.ExecContext(ctx, "DELETE FROM river_job"))
		case "pending":
			if err := pool.QueryRowContext(ctx, pending).Scan(&answer); err != nil {
				log.Fatal(err)
			}
		}
		fmt.Println(answer)
	}
}
