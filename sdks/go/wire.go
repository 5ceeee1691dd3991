// SPDX-License-Identifier: AGPL-3.0-only

// From Go values to requests of the contract, and back. No I/O. The functions that make items leave
// them unencoded: a call that has to wait for room waits before that.
//
// Every batch request of the contract is one repeated field with the number 1, and on the wire a
// repeated field is its elements one after the other. So an item is encoded once, by the caller
// that has it, and a batch is the items joined. What protobuf refuses fails that caller alone, the
// size of a batch is known before it is sent, and nobody reads a caller's map or payload after the
// caller has given up.

package fila

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/faiscadev/fila/sdks/go/internal/filapb"
)

// moment is a timestamp as a time; the zero time where it is not set.
func moment(timestamp *timestamppb.Timestamp) time.Time {
	if timestamp == nil {
		return time.Time{}
	}
	return timestamp.AsTime()
}

func timestamp(at time.Time) *timestamppb.Timestamp {
	if at.IsZero() {
		return nil
	}
	return timestamppb.New(at)
}

// milliseconds rounds up, because 0 often means a default.
func milliseconds(name string, value time.Duration, about subject) (uint64, error) {
	if value < 0 {
		text := fmt.Sprintf("%s must not be negative, got %v", name, value)
		return 0, invalid(text, about)
	}
	whole := value / time.Millisecond
	if value%time.Millisecond != 0 {
		whole++
	}
	return uint64(whole), nil
}

// duration stops at the longest that Go can express, some 292 years.
func duration(ms uint64) time.Duration {
	const longest = uint64(math.MaxInt64 / time.Millisecond)
	return time.Duration(min(ms, longest)) * time.Millisecond
}

func enqueueItem(m *EnqueueMessage, trace map[string]string) (item, error) {
	about := subject{queue: m.Queue}
	delayMS, err := milliseconds("delay", m.Delay, about)
	if err != nil {
		return item{}, err
	}
	ttlMS, err := milliseconds("ttl", m.TTL, about)
	if err != nil {
		return item{}, err
	}
	headers := m.Headers
	// A producer's own trace context wins: the message may continue a trace begun elsewhere.
	if _, isTraced := headers[traceparent]; !isTraced && len(trace) > 0 {
		headers = make(map[string]string, len(m.Headers)+len(trace))
		maps.Copy(headers, m.Headers)
		maps.Copy(headers, trace)
	}
	request := &filapb.EnqueueRequest{
		Queue:          m.Queue,
		Headers:        headers,
		Payload:        m.Payload,
		FairnessKey:    m.FairnessKey,
		Weight:         m.Weight,
		ThrottleKeys:   m.ThrottleKeys,
		ThrottleCost:   m.ThrottleCost,
		DelayMs:        delayMS,
		DeliverAt:      timestamp(m.DeliverAt),
		TtlMs:          ttlMS,
		IdempotencyKey: m.IdempotencyKey,
	}
	what := plainItem(request, about)
	what.isRepeatable = m.IdempotencyKey != ""
	return what, nil
}

func ackItem(about subject, token string, frameSize int) item {
	what := plainItem(&filapb.AckRequest{
		Queue: about.queue, MessageId: about.messageID, LeaseToken: token,
	}, about)
	what.leaseToken, what.frameSize = token, frameSize
	what.isRepeatable, what.done = token != "", ackDone
	return what
}

func nackItem(about subject, token, why string, options []NackOption) (item, error) {
	var chosen nackSettings
	for _, option := range options {
		option(&chosen)
	}
	request := &filapb.NackRequest{
		Queue:       about.queue,
		MessageId:   about.messageID,
		Error:       why,
		LeaseToken:  token,
		ThrottleKey: chosen.throttleKey,
		DeadLetter:  chosen.isDeadLetter,
	}
	if chosen.hasRetryAfter {
		retryAfterMS, err := milliseconds("retry after", chosen.retryAfter, about)
		if err != nil {
			return item{}, err
		}
		request.RetryAfterMs = &retryAfterMS
	}
	what := plainItem(request, about)
	what.isRepeatable, what.done = token != "", nackDone
	return what, nil
}

func extendItem(about subject, token string, lease time.Duration) (item, error) {
	extendMS, err := milliseconds("lease", lease, about)
	if err != nil {
		return item{}, err
	}
	what := plainItem(&filapb.LeaseExtension{
		Queue: about.queue, MessageId: about.messageID, LeaseToken: token, ExtendMs: extendMS,
	}, about)
	what.isRepeatable = token != ""
	return what, nil
}

// releaseItem gives back a message that nobody has seen: it is ready at once and no attempt is
// counted.
func releaseItem(m *filapb.Message) (item, error) {
	about := subject{queue: m.GetMetadata().GetQueueId(), messageID: m.GetId()}
	options := []NackOption{WithRetryAfter(0)}
	what, err := nackItem(about, m.GetMetadata().GetLeaseToken(), "", options)
	if err != nil {
		return item{}, err
	}
	return what, what.encode()
}

// item is one element of a batch: its bytes on the wire, and what an error about it names.
type item struct {
	// request is what data is made of, and body how large it is; nil once it was. size is that of
	// data.
	request proto.Message
	body    int
	data    []byte
	size    int
	about   subject
	// isRepeatable allows to send it again after a failure that leaves open if it was applied.
	isRepeatable bool
	// wasSent says that an earlier request with it left that open.
	wasSent bool
	// done is the errors that then say that the earlier request was applied.
	done []error
	// leaseToken is of an ack: that of its delivery. frameSize is how many messages came together
	// with it; 0 if nobody knows.
	leaseToken string
	frameSize  int
}

// What an ack wanted is that the message is gone. A nack may have led to that, too, or to another
// delivery; after an ack, another delivery means that the ack came too late.
var (
	ackDone  = []error{ErrMessageNotFound}
	nackDone = []error{ErrMessageNotFound, ErrLeaseExpired}
)

// settled is what an answer means for the item: nothing went wrong if the error only says that an
// earlier request was applied.
func (i *item) settled(err error) error {
	if err == nil || !i.wasSent {
		return err
	}
	for _, each := range i.done {
		if errors.Is(err, each) {
			return nil
		}
	}
	return err
}

// newItem is an item that is encoded already.
func newItem(request proto.Message, about subject) (item, error) {
	what := plainItem(request, about)
	err := what.encode()
	return what, err
}

// plainItem is one that is not, and knows only how large it will be.
func plainItem(request proto.Message, about subject) item {
	body := proto.Size(request)
	size := protowire.SizeTag(1) + protowire.SizeBytes(body)
	return item{request: request, body: body, size: size, about: about}
}

// encode turns the request into bytes.
func (i *item) encode() error {
	data := make([]byte, 0, i.size)
	data = protowire.AppendTag(data, 1, protowire.BytesType)
	data = protowire.AppendVarint(data, uint64(i.body))
	data, err := proto.MarshalOptions{UseCachedSize: true}.MarshalAppend(data, i.request)
	if err != nil {
		return unencodable(badText(i.request.ProtoReflect()), i.about)
	}
	i.data, i.request = data, nil
	return nil
}

// join fills a batch request with the items. Fields that a message does not know are written as
// they are, so bytes that already are the repeated field need no decoding first.
func join(request proto.Message, items []item) {
	size := 0
	for _, each := range items {
		size += len(each.data)
	}
	joined := make([]byte, 0, size)
	for _, each := range items {
		joined = append(joined, each.data...)
	}
	request.ProtoReflect().SetUnknown(joined)
}

// unencodable is the error of a request that protobuf refuses, which it does only for text that is
// not UTF-8. The value stays out of it, because it may be private.
func unencodable(field string, about subject) error {
	return invalid(field+" is not valid UTF-8", about)
}

// badText names the field of a message whose text is not UTF-8; empty when all of it is.
func badText(message protoreflect.Message) string {
	bad := ""
	message.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		switch {
		case field.IsMap():
			value.Map().Range(func(key protoreflect.MapKey, value protoreflect.Value) bool {
				if !utf8.ValidString(key.String()) || !utf8.ValidString(value.String()) {
					bad = fmt.Sprintf("%s entry %q", field.Name(), key.String())
				}
				return bad == ""
			})
		case field.IsList():
			for i := range value.List().Len() {
				bad = cmp.Or(bad, badValue(field, value.List().Get(i)))
			}
		default:
			bad = badValue(field, value)
		}
		return bad == ""
	})
	return bad
}

func badValue(field protoreflect.FieldDescriptor, value protoreflect.Value) string {
	switch field.Kind() {
	case protoreflect.MessageKind:
		return badText(value.Message())
	case protoreflect.StringKind:
		if !utf8.ValidString(value.String()) {
			return string(field.Name())
		}
	}
	return ""
}
