// SPDX-License-Identifier: AGPL-3.0-only

// The driver of the Go SDK: JSON lines in, calls of the SDK's public API, JSON lines out. What the
// lines mean is in conformance/PROTOCOL.md. This file owns the lines, the other ones the calls.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	fila "github.com/faiscadev/fila/sdks/go"
)

// Requests that are still under way at the end of the input have this long to reply.
const farewell = time.Second

type driver struct {
	output    sync.Mutex
	lock      sync.Mutex
	underWay  map[key]context.CancelFunc
	clients   map[key]*fila.Client
	consumers map[key]*consumer
	workers   map[key]*worker
}

func main() {
	terminated := make(chan os.Signal, 1)
	signal.Notify(terminated, syscall.SIGTERM)
	go func() {
		<-terminated
		os.Exit(0)
	}()
	d := &driver{
		underWay:  map[key]context.CancelFunc{},
		clients:   map[key]*fila.Client{},
		consumers: map[key]*consumer{},
		workers:   map[key]*worker{},
	}
	var requests sync.WaitGroup
	lines := bufio.NewReader(os.Stdin)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			break
		}
		d.start(line, &requests)
	}
	finished := make(chan struct{})
	go func() {
		requests.Wait()
		close(finished)
	}()
	select {
	case <-finished:
	case <-time.After(farewell):
	}
}

// start runs one request beside the others.
func (d *driver) start(line []byte, requests *sync.WaitGroup) {
	var r request
	if err := json.Unmarshal(line, &r); err != nil {
		d.reply(r.ID, "crashed", err.Error())
		return
	}
	// Registered before the next line is read, because that one may cancel it.
	ctx, cancel := context.WithCancel(context.Background())
	d.lock.Lock()
	d.underWay[r.ID] = cancel
	d.lock.Unlock()
	requests.Go(func() {
		defer cancel()
		d.serve(ctx, &r)
		d.lock.Lock()
		delete(d.underWay, r.ID)
		d.lock.Unlock()
	})
}

func (d *driver) serve(ctx context.Context, r *request) {
	defer func() {
		if panicked := recover(); panicked != nil {
			d.reply(r.ID, "crashed", fmt.Sprint(panicked))
		}
	}()
	found, err := d.run(ctx, r)
	var failure *fila.Error
	switch {
	case errors.Is(err, errUnknownOp):
		d.reply(r.ID, "unsupported", err.Error())
	case errors.As(err, &failure):
		d.reply(r.ID, "error", describe(failure))
	case err != nil:
		d.reply(r.ID, "crashed", err.Error())
	default:
		d.reply(r.ID, "ok", found)
	}
}

// reply writes one line. Standard output has no buffer, so the line is on its way.
func (d *driver) reply(id key, outcome string, value any) {
	line, err := json.Marshal(map[string]any{"id": json.RawMessage(id.orNull()), outcome: value})
	if err != nil {
		panic(err)
	}
	d.output.Lock()
	defer d.output.Unlock()
	_, _ = os.Stdout.Write(append(line, '\n')) // Without a reader there is nobody to tell.
}
