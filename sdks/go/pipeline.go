// SPDX-License-Identifier: AGPL-3.0-only

// Batch calls over long-lived streams, which cost a part of what calls of their own would.
//
// A client has two pipelines, one for enqueues and one for settlements, so that neither waits for
// the other. A pipeline is a stream, opened with the first batch and again with the first one after
// it broke. Answers come in the order of the requests, so a stream is two goroutines and a list of
// who waits:
//
//	caller --> requests --> writer --> stream --> reader --> the oldest of pending --> its caller
//
// A caller keeps its own deadline: it leaves, and its answer is dropped when it comes. A stream
// that breaks fails what was written to it, which may have been done; what was not written goes to
// the next stream. Where answers stop coming, or the API key is another one, callers go to another
// stream, and the old one ends with its last caller.

package fila

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/faiscadev/fila/sdks/go/internal/filapb"
)

const (
	// More than the coalescers have under way, so this bounds callers that bring their own batches.
	pipelineRequestsMax = 16
	// Tag and length of a batch inside a request of a pipeline.
	pipelineOverheadBytes = 16
	// A connection that is this silent is taken for dead; so is a stream.
	pipelineStallTime = keepaliveTime + keepaliveTimeout
	// What was sent is answered meanwhile, and the broker sees a stream that ended well.
	pipelineDrainTime = time.Second
)

// pipeline is where batch calls of one kind go.
type pipeline struct {
	connection *connection
	stallTime  time.Duration

	lock sync.Mutex
	// open is the stream that takes requests; nil before the first one, and after it broke.
	open     *pipe
	isClosed bool
}

// pipe is one stream.
type pipe struct {
	pipeline *pipeline
	// key is the API key that it was opened with.
	key    string
	cancel context.CancelFunc
	isOpen atomic.Bool

	// slots has an entry for each request until it is answered, requests what is not written yet.
	slots    chan struct{}
	requests chan *passage
	// closing is closed when the client closes, lost when nobody is sent here any more, broken when
	// the stream is over, done when everybody has been told.
	closing chan struct{}
	lost    chan struct{}
	broken  chan struct{}
	done    chan struct{}

	// err is why it broke, written before broken is closed.
	err error

	lock sync.Mutex
	// pending is what was written, or is about to be: oldest first.
	pending []*passage
	// callers is how many still wait. A pipe that is lost ends with the last of them.
	callers int
	isLost  bool
	isOver  bool
	// isRefused says that it ended before anything was answered, and not because it was lost.
	isRefused bool
	// movedAt is when an answer came last, or when there began to be one to wait for.
	movedAt     time.Time
	hasAnswered bool
}

// passage is one request on its way. All but done is guarded by the pipe's lock.
type passage struct {
	request *filapb.PipelineRequest
	// isOwn says whether an answer is one to this kind of request.
	isOwn     func(*filapb.PipelineResponse) bool
	isWritten bool
	isGone    bool
	// done takes the outcome without blocking, whether or not the caller is still there.
	done chan passed
}

type passed struct {
	answer *filapb.PipelineResponse
	err    error
	// key is that of the stream which gave the answer.
	key string
	// isUnsent says that the broker cannot have seen the request, isUnknown that it knows no
	// pipelines and has done nothing.
	isUnsent  bool
	isUnknown bool
}

func newPipeline(c *connection) *pipeline {
	return &pipeline{connection: c, stallTime: pipelineStallTime}
}

// carry sends a batch through the pipeline, or as a call of its own: where the broker knows no
// pipelines, for a trace, which is metadata and so the call's, and for what is so large that others
// should not wait behind it, nor a limit on its size end their stream.
func carry[Q, A proto.Message](
	ctx context.Context, p *pipeline, alone unary[Q, A], request Q, trace map[string]string,
	wrapped *filapb.PipelineRequest, read func(*filapb.PipelineResponse) A,
) (A, error) {
	var none A
	c := p.connection
	bytesMax := min(batchBytesMax, c.messageBytesMax-pipelineOverheadBytes)
	if c.hasNoPipelines.Load() || len(trace) > 0 || proto.Size(request) > bytesMax {
		return call(ctx, c, alone, request, trace)
	}
	if c.isClosed() {
		return none, clientClosed(subject{})
	}
	if ctx.Err() != nil {
		return none, ended(ctx, beforeSent, subject{})
	}
	isOwn := func(answer *filapb.PipelineResponse) bool {
		return answer.GetError() != nil || read(answer).ProtoReflect().IsValid()
	}
	found := p.pass(ctx, wrapped, isOwn)
	if found.isUnsent {
		found = p.pass(ctx, wrapped, isOwn)
	}
	if found.isUnknown {
		c.hasNoPipelines.Store(true)
		return call(ctx, c, alone, request, trace)
	}
	if found.err != nil {
		return none, found.err
	}
	if refused := found.answer.GetError(); refused != nil {
		return none, c.refusal(ctx, found.key, refused, request)
	}
	return read(found.answer), nil
}

// refusal is what the call would have failed with.
func (c *connection) refusal(
	ctx context.Context, key string, refused *filapb.ItemError, request proto.Message,
) error {
	reason := reasonName(refused)
	known, isKnown := reasons[reason]
	if !isKnown {
		known.code = codes.Internal
	}
	err := status.Error(known.code, refused.GetMessage())
	return c.failure(ctx, key, err, metadata.Pairs(reasonTrailer, reason), request)
}

// pass sends a request through the stream that is open now, and waits for its answer.
func (p *pipeline) pass(
	ctx context.Context, request *filapb.PipelineRequest,
	isOwn func(*filapb.PipelineResponse) bool,
) passed {
	key, err := p.connection.key(ctx)
	if err != nil {
		return passed{err: err}
	}
	on := p.current(key)
	if on == nil {
		return passed{err: clientClosed(subject{})}
	}
	alive := p.connection.alive.Done()
	select {
	case on.slots <- struct{}{}:
	case <-on.lost:
		return on.turnedAway()
	case <-ctx.Done():
		on.leaveIfStalled()
		return passed{err: ended(ctx, inLine, subject{})}
	case <-alive:
		return passed{err: clientClosed(subject{})}
	}
	mine := &passage{request: request, isOwn: isOwn, done: make(chan passed, 1)}
	if !on.begin(mine) {
		return on.turnedAway()
	}
	select {
	case found := <-mine.done:
		return found
	case <-ctx.Done():
		return passed{err: ended(ctx, on.leave(mine), subject{})}
	case <-alive:
		on.leave(mine)
		return passed{err: clientClosed(subject{})}
	}
}

// turnedAway is the outcome of a request that came too late for the stream. The next stream takes
// it, but not if nothing was ever answered here: then the end was about everybody.
func (s *pipe) turnedAway() passed {
	s.lock.Lock()
	defer s.lock.Unlock()
	if s.isRefused {
		return passed{err: s.err, isUnknown: errors.Is(s.err, ErrUnimplemented)}
	}
	text := "the stream was lost before the request was sent"
	err := newError(ErrUnavailable, codes.Unavailable, text, subject{}, nil)
	return passed{err: err, isUnsent: true}
}

// current is the stream to use with a key, opened if need be; nil once the client is closed.
func (p *pipeline) current(key string) *pipe {
	p.lock.Lock()
	old := p.open
	if old != nil && old.key != key && !p.isClosed {
		p.open = nil
		defer old.retire() // It takes the stream's lock, which comes before this one.
	}
	defer p.lock.Unlock()
	if p.open == nil && !p.isClosed {
		ctx, cancel := context.WithCancel(context.Background())
		p.open = &pipe{
			pipeline: p,
			key:      key,
			cancel:   cancel,
			slots:    make(chan struct{}, pipelineRequestsMax),
			requests: make(chan *passage, pipelineRequestsMax),
			closing:  make(chan struct{}),
			lost:     make(chan struct{}),
			broken:   make(chan struct{}),
			done:     make(chan struct{}),
		}
		go p.open.run(ctx)
	}
	return p.open
}

func (p *pipeline) forget(lost *pipe) {
	p.lock.Lock()
	defer p.lock.Unlock()
	if p.open == lost {
		p.open = nil
	}
}

// close half-closes the stream and waits until it has ended well, or for the context.
func (p *pipeline) close(ctx context.Context) {
	p.lock.Lock()
	on := p.open
	p.isClosed = true
	p.lock.Unlock()
	if on == nil {
		return
	}
	close(on.closing)
	if !on.isOpen.Load() {
		on.cancel()
	}
	select {
	case <-on.done:
	case <-ctx.Done():
		on.cancel()
		<-on.done
	}
}

// begin hands a request to the writer. The caller has a slot, so there is room for it. False when
// the stream takes no more.
func (s *pipe) begin(mine *passage) bool {
	s.lock.Lock()
	defer s.lock.Unlock()
	if s.isOver || s.isLost {
		return false
	}
	if len(s.pending)+len(s.requests) == 0 {
		s.movedAt = time.Now()
	}
	s.callers++
	s.requests <- mine
	return true
}

// leave takes a caller out that waits no longer, and says where its request is.
func (s *pipe) leave(mine *passage) string {
	s.lock.Lock()
	defer s.lock.Unlock()
	mine.isGone = true
	s.callers--
	s.lookLocked()
	if mine.isWritten {
		return beforeAnswer
	}
	return beforeSent
}

func (s *pipe) leaveIfStalled() {
	s.lock.Lock()
	defer s.lock.Unlock()
	s.lookLocked()
}

// retire has no more requests begin here.
func (s *pipe) retire() {
	s.lock.Lock()
	defer s.lock.Unlock()
	s.loseLocked()
	s.endIfAloneLocked()
}

// lookLocked gives the pipe up if its answers have stopped, and ends it if nobody is left on it.
func (s *pipe) lookLocked() {
	if !s.isLost && time.Since(s.movedAt) > s.pipeline.stallTime {
		s.loseLocked()
	}
	s.endIfAloneLocked()
}

func (s *pipe) endIfAloneLocked() {
	if s.isLost && s.callers == 0 {
		s.cancel()
	}
}

func (s *pipe) loseLocked() {
	if !s.isLost {
		s.isLost = true
		s.pipeline.forget(s)
		close(s.lost)
	}
}

// run opens the stream and writes to it until it is over.
func (s *pipe) run(ctx context.Context) {
	defer s.cancel()
	c := s.pipeline.connection
	stream, err := c.service.Pipeline(outgoing(ctx, s.key, nil))
	if err != nil {
		s.err = c.failure(context.Background(), s.key, err, nil, &filapb.PipelineRequest{})
		close(s.broken)
		s.finish(nil)
		return
	}
	s.isOpen.Store(true)
	go s.read(stream)
	for {
		select {
		case next := <-s.requests:
			if !s.isWanted(next) {
				<-s.slots
				continue
			}
			if err := stream.Send(next.request); err != nil {
				if !errors.Is(err, io.EOF) { // Refused here, by gRPC: the stream itself is fine.
					s.cancel()
				}
				<-s.broken
				s.finish(next)
				return
			}
		case <-s.closing:
			_ = stream.CloseSend() // The reader is told if it fails.
			<-s.broken
			s.finish(nil)
			return
		case <-s.broken:
			s.finish(nil)
			return
		}
	}
}

// isWanted puts a request where its answer will look for it, unless its caller has left.
func (s *pipe) isWanted(next *passage) bool {
	s.lock.Lock()
	defer s.lock.Unlock()
	if next.isGone {
		return false
	}
	next.isWritten = true
	s.pending = append(s.pending, next)
	return true
}

// finish tells everybody that the stream is over. What could not be written may go elsewhere, but
// not if nothing was ever answered here: then the end was about everybody.
func (s *pipe) finish(unwritten *passage) {
	s.lock.Lock()
	defer s.lock.Unlock()
	s.isRefused = !s.isLost && !s.hasAnswered
	s.loseLocked()
	s.isOver = true
	isUnknown := !s.hasAnswered && errors.Is(s.err, ErrUnimplemented)
	for _, each := range s.pending {
		each.done <- passed{
			err: s.err, isUnsent: s.hasAnswered && each == unwritten, isUnknown: isUnknown,
		}
	}
	s.pending = nil
	for len(s.requests) > 0 {
		(<-s.requests).done <- passed{
			err: s.err, isUnsent: s.hasAnswered, isUnknown: isUnknown,
		}
	}
	close(s.done)
}

// read gives answers to those who wait for them, until the stream is over.
func (s *pipe) read(stream filapb.FilaService_PipelineClient) {
	defer close(s.broken)
	c := s.pipeline.connection
	for {
		answer, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			text := "the broker ended the stream"
			s.err = newError(ErrUnavailable, codes.Unavailable, text, subject{}, nil)
			return
		case err != nil:
			s.err = c.failure(
				context.Background(), s.key, err, stream.Trailer(), &filapb.PipelineRequest{},
			)
			return
		case !s.answered(answer):
			text := "the broker answered what nobody asked"
			s.err = newError(ErrInternal, codes.Internal, text, subject{}, nil)
			s.cancel()
			return
		}
	}
}

// answered gives an answer to the oldest request. False when it is not one to that.
func (s *pipe) answered(answer *filapb.PipelineResponse) bool {
	s.lock.Lock()
	defer s.lock.Unlock()
	if len(s.pending) == 0 || !s.pending[0].isOwn(answer) {
		return false
	}
	oldest := s.pending[0]
	s.pending = s.pending[1:]
	s.movedAt, s.hasAnswered = time.Now(), true
	<-s.slots
	if !oldest.isGone {
		s.callers--
		oldest.done <- passed{answer: answer, key: s.key}
	}
	s.endIfAloneLocked()
	return true
}
