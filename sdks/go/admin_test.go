// SPDX-License-Identifier: AGPL-3.0-only

package fila_test

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	fila "github.com/faiscadev/fila/sdks/go"
	"github.com/faiscadev/fila/sdks/go/internal/filapb"
)

var (
	moment    = time.UnixMilli(1_700_000_000_123).UTC()
	timestamp = timestamppb.New(moment)
)

// wantRequest looks at the only call of a method.
func wantRequest(t *testing.T, b *broker, method string, want proto.Message) {
	t.Helper()
	calls := b.seenOf(method)
	equal(t, "calls of "+method, len(calls), 1)
	if !proto.Equal(calls[0].request, want) {
		t.Fatalf("%s: got %v, want %v", method, calls[0].request, want)
	}
}

func wantValue(t *testing.T, got, want any) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("got %+v, want %+v", got, want)
	}
}

var allSettings = []fila.QueueSetting{
	fila.OnEnqueueScript("a"), fila.OnFailureScript("b"), fila.VisibilityTimeout(time.Second),
	fila.MaxAttempts(4), fila.RetryDelay(5 * time.Millisecond),
	fila.RetryDelayMax(6 * time.Millisecond), fila.DefaultTTL(7 * time.Millisecond),
	fila.IdempotencyWindow(8 * time.Millisecond), fila.MaxMessages(9),
	fila.OnHookError(fila.HookErrorReject), fila.HookTimeout(11 * time.Millisecond),
	fila.HookMemoryLimitBytes(12), fila.Quantum(13),
}

var wireConfig = &filapb.QueueConfig{
	OnEnqueueScript: "a", OnFailureScript: "b", VisibilityTimeoutMs: 1000, MaxAttempts: 4,
	RetryDelayMs: 5, RetryDelayMaxMs: 6, DefaultTtlMs: 7, IdempotencyWindowMs: 8, MaxMessages: 9,
	OnHookError:   filapb.HookErrorPolicy_HOOK_ERROR_POLICY_REJECT,
	HookTimeoutMs: 11, HookMemoryLimitBytes: 12, Quantum: 13,
}

var plainConfig = fila.QueueConfig{
	OnEnqueueScript: "a", OnFailureScript: "b", VisibilityTimeout: time.Second, MaxAttempts: 4,
	RetryDelay: 5 * time.Millisecond, RetryDelayMax: 6 * time.Millisecond,
	DefaultTTL: 7 * time.Millisecond, IdempotencyWindow: 8 * time.Millisecond, MaxMessages: 9,
	OnHookError: fila.HookErrorReject, HookTimeout: 11 * time.Millisecond,
	HookMemoryLimitBytes: 12, Quantum: 13,
}

func TestCreateQueueSendsEverySetting(t *testing.T) {
	b := startBroker(t)
	client := newClient(t, b.target)
	b.script("CreateQueue", replyWith(&filapb.CreateQueueResponse{
		QueueId: "orders", DeadLetterQueue: "orders.dlq",
	}))
	name, err := client.CreateQueue(t.Context(), "orders", allSettings...)
	check(t, err)
	equal(t, "dead-letter queue", name, "orders.dlq")
	wantRequest(t, b, "CreateQueue", &filapb.CreateQueueRequest{Name: "orders", Config: wireConfig})
}

func TestUpdateQueueNamesTheSettingsThatAreMeant(t *testing.T) {
	b := startBroker(t)
	client := newClient(t, b.target)
	b.script("UpdateQueue", replyWith(&filapb.UpdateQueueResponse{Config: wireConfig}))
	config, err := client.UpdateQueue(t.Context(), "orders", fila.MaxAttempts(0), fila.Quantum(2))
	check(t, err)
	wantValue(t, config, plainConfig)
	wantRequest(t, b, "UpdateQueue", &filapb.UpdateQueueRequest{
		Queue:      "orders",
		Config:     &filapb.QueueConfig{Quantum: 2},
		UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"max_attempts", "quantum"}},
	})
}

func TestEverySettingIsAFieldOfTheContract(t *testing.T) {
	b := startBroker(t)
	client := newClient(t, b.target)
	b.script("UpdateQueue", replyWith(&filapb.UpdateQueueResponse{}))
	_, err := client.UpdateQueue(t.Context(), "orders", allSettings...)
	check(t, err)
	mask := b.seenOf("UpdateQueue")[0].request.(*filapb.UpdateQueueRequest).GetUpdateMask()
	fields := (&filapb.QueueConfig{}).ProtoReflect().Descriptor().Fields()
	equal(t, "settings", len(mask.GetPaths()), fields.Len())
	equal(t, "all are fields", mask.IsValid(&filapb.QueueConfig{}), true)
}

func TestUnknownNamesAreRefusedBeforeSending(t *testing.T) {
	client := newClient(t, startBroker(t).target)
	_, err := client.CreateQueue(t.Context(), "orders", fila.OnHookError("ignore"))
	failure := wantKind(t, err, fila.ErrInvalidArgument)
	equal(t, "text", failure.Error(), `"ignore" is not a policy for failing hooks`)
	_, err = client.UpdateQueue(t.Context(), "orders", fila.OnHookError("ignore"))
	wantKind(t, err, fila.ErrInvalidArgument)
	_, err = client.Peek(t.Context(), "orders", fila.PeekQuery{State: "lost"})
	equal(t, "text", wantKind(t, err, fila.ErrInvalidArgument).Error(),
		`"lost" is not a state of messages`)
	acl := []fila.ACLEntry{{Permission: "fly", Pattern: "*"}}
	_, err = client.CreateAPIKey(t.Context(), fila.APIKeyRequest{Name: "k", ACL: acl})
	equal(t, "text", wantKind(t, err, fila.ErrInvalidArgument).Error(), `"fly" is not a permission`)
	wantKind(t, client.SetACL(t.Context(), "k", acl), fila.ErrInvalidArgument)
}

func TestTextThatIsNotUTF8IsNamedWhereverItIs(t *testing.T) {
	client := newClient(t, startBroker(t).target)
	ctx := t.Context()
	_, redrive := client.Redrive(ctx, "q", fila.RedriveFilter{MessageIDs: []string{"a", "\xff"}})
	_, create := client.CreateQueue(ctx, "q", fila.OnFailureScript("\xff"))
	acl := []fila.ACLEntry{{Permission: fila.PermissionAdmin, Pattern: "\xff"}}
	for field, err := range map[string]error{
		"value":             client.SetConfig(ctx, "k", "\xff"),
		"message_ids":       redrive,
		"on_failure_script": create,
		"pattern":           client.SetACL(ctx, "k", acl),
	} {
		failure := wantKind(t, err, fila.ErrInvalidArgument)
		equal(t, "text", failure.Error(), field+" is not valid UTF-8")
	}
}

func TestReadsFailWithTheBrokersReason(t *testing.T) {
	b := startBroker(t)
	client := newClient(t, b.target)
	for _, method := range []string{
		"UpdateQueue", "ListQueues", "Peek", "Explain", "ListConfig", "ListThrottles",
		"ListApiKeys", "GetAcl", "ExtendLease",
	} {
		b.script(method, refuse(codes.PermissionDenied, "not yours", "PERMISSION_DENIED"))
	}
	ctx := t.Context()
	failures := map[string]error{}
	_, failures["UpdateQueue"] = client.UpdateQueue(ctx, "q")
	_, failures["ListQueues"] = client.ListQueues(ctx)
	_, failures["Peek"] = client.Peek(ctx, "q", fila.PeekQuery{})
	_, failures["Explain"] = client.ExplainKey(ctx, "q", "k")
	_, failures["ListConfig"] = client.ListConfig(ctx, "")
	_, failures["ListThrottles"] = client.ListThrottles(ctx, fila.ThrottleFilter{})
	_, failures["ListApiKeys"] = client.ListAPIKeys(ctx)
	_, failures["GetAcl"] = client.GetACL(ctx, "k")
	_, failures["ExtendLease"] = client.Extend(ctx, "q", "m", "", 0)
	for method, err := range failures {
		equal(t, method, wantKind(t, err, fila.ErrPermissionDenied).Error(), "not yours")
	}
}

func TestQueuesAreListedAndDeleted(t *testing.T) {
	b := startBroker(t)
	client := newClient(t, b.target)
	b.script("ListQueues", replyWith(&filapb.ListQueuesResponse{Queues: []*filapb.QueueInfo{{
		Name: "orders.dlq", Depth: 1, InFlight: 2, ActiveConsumers: 3, LeaderNodeId: 4,
		Paused: true, DeadLetterOf: "orders", Delayed: 5,
	}}}))
	b.script("DeleteQueue", replyWith(&filapb.DeleteQueueResponse{Messages: 3, DeadLetters: 2}))
	queues, err := client.ListQueues(t.Context())
	check(t, err)
	wantValue(t, queues, []fila.QueueInfo{{
		Name: "orders.dlq", Depth: 1, InFlight: 2, ActiveConsumers: 3, LeaderNodeID: 4,
		IsPaused: true, DeadLetterOf: "orders", Delayed: 5,
	}})
	gone, err := client.DeleteQueue(t.Context(), "orders")
	check(t, err)
	wantValue(t, gone, fila.DeletedQueue{Messages: 3, DeadLetters: 2})
	wantRequest(t, b, "DeleteQueue", &filapb.DeleteQueueRequest{Queue: "orders"})
	_, err = client.DeleteQueue(t.Context(), "orders", fila.WithDeadLettersKept())
	check(t, err)
	kept := b.seenOf("DeleteQueue")[1].request.(*filapb.DeleteQueueRequest)
	equal(t, "kept", kept.GetKeepDeadLetters(), true)
}

var (
	wireThrottle = &filapb.PerThrottleKeyStats{
		Key: "mail", Tokens: 1.5, RatePerSecond: 2.5, Burst: 3.5, Passed: 4, Blocked: 5,
		ConcurrencyLimit: 6, InFlight: 7, PausedUntil: timestamp, Waiting: 8,
		PassedPerSecond: 9.5, BlockedPerSecond: 10.5, Pattern: "mai*", Unset: true, Paused: true,
	}
	plainThrottle = fila.ThrottleKeyStats{
		Key: "mail", Tokens: 1.5, RatePerSecond: 2.5, Burst: 3.5, Passed: 4, Blocked: 5,
		ConcurrencyLimit: 6, InFlight: 7, PausedUntil: moment, Waiting: 8,
		PassedPerSecond: 9.5, BlockedPerSecond: 10.5, Pattern: "mai*", IsUnset: true,
		IsPaused: true,
	}
	wireFailures = []*filapb.Failure{
		{FailedAt: timestamp, Cause: filapb.FailureCause_FAILURE_CAUSE_EXPIRED, Error: "late"},
		{Cause: 99},
	}
	plainFailures = []fila.Failure{
		{FailedAt: moment, Cause: fila.FailureExpired, Error: "late"}, {},
	}
)

func TestThrottleKeysAreListedPausedAndResumed(t *testing.T) {
	b := startBroker(t)
	client := newClient(t, b.target)
	b.script("ListThrottles", replyWith(&filapb.ListThrottlesResponse{
		Throttles: []*filapb.PerThrottleKeyStats{wireThrottle}, TotalCount: 7,
	}))
	b.script("Pause", replyWith(&filapb.PauseResponse{}))
	b.script("Resume", replyWith(&filapb.ResumeResponse{}))
	filter := fila.ThrottleFilter{Prefix: "mail", IsUnset: true, Limit: 1}
	page, err := client.ListThrottles(t.Context(), filter)
	check(t, err)
	wantValue(t, page, fila.ThrottlePage{
		Throttles: []fila.ThrottleKeyStats{plainThrottle}, TotalCount: 7,
	})
	check(t, client.PauseThrottle(t.Context(), "stripe", time.Minute))
	check(t, client.ResumeThrottle(t.Context(), "stripe"))
	wantRequest(t, b, "ListThrottles", &filapb.ListThrottlesRequest{
		Prefix: "mail", Unset: true, Limit: 1,
	})
	wantRequest(t, b, "Pause", &filapb.PauseRequest{ThrottleKey: "stripe", DurationMs: 60_000})
	wantRequest(t, b, "Resume", &filapb.ResumeRequest{ThrottleKey: "stripe"})
	check(t, client.PauseThrottle(t.Context(), "stripe", 0))
	open := b.seenOf("Pause")[1].request.(*filapb.PauseRequest)
	equal(t, "until resumed", open.GetDurationMs(), 0)
	err = client.PauseThrottle(t.Context(), "stripe", -time.Second)
	equal(t, "text", wantKind(t, err, fila.ErrInvalidArgument).Error(),
		"pause must not be negative, got -1s")
}

func TestStatsReportEverything(t *testing.T) {
	b := startBroker(t)
	client := newClient(t, b.target)
	b.script("GetStats", replyWith(&filapb.GetStatsResponse{
		Depth: 1, InFlight: 2, ActiveFairnessKeys: 3, ActiveConsumers: 4, Quantum: 5,
		PerKeyStats: []*filapb.PerFairnessKeyStats{{
			Key: "acme", PendingCount: 1, CurrentDeficit: -2, Weight: 3, Delivered: 4,
			Throttled: 5, Paused: true,
		}, {Key: "zeta", RoundPosition: proto.Uint32(0)}},
		PerThrottleStats: []*filapb.PerThrottleKeyStats{wireThrottle},
		Delayed:          8, Paused: true, LeaderNodeId: 9, ReplicationCount: 10, RoundKey: "zeta",
		Counters: &filapb.QueueCounters{
			Enqueued: 1, Delivered: 2, Acked: 3, Nacked: 4, Expired: 5, DeadLettered: 6,
			TimedOut: 7, Duplicates: 8,
		},
		Config: wireConfig, OldestPendingAgeMs: 12, DeadLetterOf: "x", ConsumerCredit: 14,
		Throttled: 15,
		Hooks: &filapb.HookStats{
			Calls: 1, Failures: 2, Bypassed: 3, CircuitOpen: true, LastError: "oops",
		},
	}))
	stats, err := client.Stats(t.Context(), "orders", 7)
	check(t, err)
	wantRequest(t, b, "GetStats", &filapb.GetStatsRequest{Queue: "orders", MaxKeys: 7})
	wantValue(t, stats, fila.QueueStats{
		Depth: 1, InFlight: 2, ActiveFairnessKeys: 3, ActiveConsumers: 4, Quantum: 5,
		PerKey: []fila.FairnessKeyStats{{
			Key: "acme", PendingCount: 1, CurrentDeficit: -2, Weight: 3, Delivered: 4,
			Throttled: 5, IsPaused: true,
		}, {Key: "zeta", RoundPosition: proto.Uint32(0)}},
		PerThrottle: []fila.ThrottleKeyStats{plainThrottle},
		Delayed:     8, IsPaused: true, LeaderNodeID: 9, ReplicationCount: 10, RoundKey: "zeta",
		Counters: fila.QueueCounters{
			Enqueued: 1, Delivered: 2, Acked: 3, Nacked: 4, Expired: 5, DeadLettered: 6,
			TimedOut: 7, Duplicates: 8,
		},
		Config: plainConfig, OldestPendingAge: 12 * time.Millisecond, DeadLetterOf: "x",
		ConsumerCredit: 14, Throttled: 15,
		Hooks: &fila.HookStats{
			Calls: 1, Failures: 2, Bypassed: 3, IsCircuitOpen: true, LastError: "oops",
		},
	})
	b.script("GetStats", replyWith(&filapb.GetStatsResponse{}))
	stats, err = client.Stats(t.Context(), "orders", 0)
	check(t, err)
	equal(t, "no hooks", stats.Hooks, nil)
	equal(t, "policy", stats.Config.OnHookError, fila.HookErrorDefault)
}

func TestPeekShowsMessages(t *testing.T) {
	b := startBroker(t)
	client := newClient(t, b.target)
	failed := proto.CloneOf(frame("m-1").GetMessages()[0])
	failed.Metadata.Failures = wireFailures
	b.script("Peek", replyWith(&filapb.PeekResponse{
		Messages: []*filapb.PeekedMessage{{
			Message: failed, Position: 5,
			State: filapb.MessageState_MESSAGE_STATE_LEASED,
		}, {Message: frame("m-2").GetMessages()[0], State: 99}},
		NextPosition: 6, EndPosition: 9,
	}))
	page, err := client.Peek(t.Context(), "orders", fila.PeekQuery{
		Limit: 2, FromPosition: 3, UntilPosition: 4, FairnessKey: "acme",
		State: fila.StateDelayed, IsPayloadExcluded: true,
	})
	check(t, err)
	wantRequest(t, b, "Peek", &filapb.PeekRequest{
		Queue: "orders", Limit: 2, FromPosition: 3, UntilPosition: 4, FairnessKey: "acme",
		State: filapb.MessageState_MESSAGE_STATE_DELAYED, ExcludePayload: true,
	})
	equal(t, "next", page.NextPosition, 6)
	equal(t, "end", page.EndPosition, 9)
	equal(t, "id", page.Messages[0].Message.ID, "m-1")
	wantValue(t, page.Messages[0].Message.Failures, plainFailures)
	equal(t, "state", page.Messages[0].State, fila.StateLeased)
	equal(t, "position", page.Messages[0].Position, 5)
	equal(t, "state of a newer broker", page.Messages[1].State, "")
}

func TestPurgePauseResumeRedriveAndCancel(t *testing.T) {
	b := startBroker(t)
	client := newClient(t, b.target)
	b.script("Purge", replyWith(&filapb.PurgeResponse{Purged: 3}))
	b.script("Pause", replyWith(&filapb.PauseResponse{}))
	b.script("Resume", replyWith(&filapb.ResumeResponse{}))
	b.script("Redrive", replyWith(&filapb.RedriveResponse{Redriven: 4}))
	b.script("CancelMessage", replyWith(&filapb.CancelMessageResponse{}))
	purged, err := client.Purge(t.Context(), "orders", "acme")
	check(t, err)
	equal(t, "purged", purged, 3)
	check(t, client.Pause(t.Context(), "orders", "acme"))
	check(t, client.Resume(t.Context(), "orders", ""))
	redriven, err := client.Redrive(t.Context(), "orders.dlq", fila.RedriveFilter{
		Count: 5, FairnessKey: "acme", ErrorContains: "oops", MessageIDs: []string{"m-1"},
	})
	check(t, err)
	equal(t, "redriven", redriven, 4)
	check(t, client.Cancel(t.Context(), "orders", "m-1"))
	wantRequest(t, b, "Purge", &filapb.PurgeRequest{Queue: "orders", FairnessKey: "acme"})
	wantRequest(t, b, "Pause", &filapb.PauseRequest{Queue: "orders", FairnessKey: "acme"})
	wantRequest(t, b, "Resume", &filapb.ResumeRequest{Queue: "orders"})
	wantRequest(t, b, "Redrive", &filapb.RedriveRequest{
		DlqQueue: "orders.dlq", Count: 5, FairnessKey: "acme", ErrorContains: "oops",
		MessageIds: []string{"m-1"},
	})
	wantRequest(t, b, "CancelMessage", &filapb.CancelMessageRequest{
		Queue: "orders", MessageId: "m-1",
	})
}

func TestExplainSaysWhy(t *testing.T) {
	b := startBroker(t)
	client := newClient(t, b.target)
	b.script("Explain", replyWith(&filapb.ExplainResponse{
		Summary: "the bucket is empty",
		Reasons: []*filapb.WaitReason{{
			Kind: filapb.WaitKind_WAIT_KIND_NO_CREDIT, Detail: "d", ThrottleKey: "mail",
			Until: timestamp, Count: 1, Limit: 2,
		}},
		EstimatedAt: timestamp, FairnessKey: "acme", PendingCount: 3, Ahead: 4,
		State:    filapb.MessageState_MESSAGE_STATE_PENDING,
		Failures: wireFailures, UnsetThrottleKeys: []string{"mail", "sms"},
	}))
	explanation, err := client.ExplainMessage(t.Context(), "orders", "m-1")
	check(t, err)
	wantRequest(t, b, "Explain", &filapb.ExplainRequest{Queue: "orders", MessageId: "m-1"})
	wantValue(t, explanation, fila.Explanation{
		Summary: "the bucket is empty",
		Reasons: []fila.WaitReason{{
			Kind: fila.WaitNoCredit, Detail: "d", ThrottleKey: "mail", Until: moment, Count: 1,
			Limit: 2,
		}},
		EstimatedAt: moment, FairnessKey: "acme", PendingCount: 3, Ahead: 4,
		State:    fila.StatePending,
		Failures: plainFailures, UnsetThrottleKeys: []string{"mail", "sms"},
	})
	_, err = client.ExplainKey(t.Context(), "orders", "acme")
	check(t, err)
	asked := b.seenOf("Explain")[1].request.(*filapb.ExplainRequest)
	equal(t, "key", asked.GetFairnessKey()+asked.GetMessageId(), "acme")
}

func TestEnumsAreThoseOfTheContract(t *testing.T) {
	b := startBroker(t)
	client := newClient(t, b.target)
	kinds := []fila.WaitKind{
		"", fila.WaitThrottled, fila.WaitConcurrency, fila.WaitTurn, fila.WaitDelayed,
		fila.WaitPaused, fila.WaitNoCredit, fila.WaitLeased, fila.WaitBackpressure,
		fila.WaitHookBypassed,
	}
	equal(t, "kinds of waiting", len(kinds), len(filapb.WaitKind_name))
	var reasons []*filapb.WaitReason
	for number := range kinds {
		reasons = append(reasons, &filapb.WaitReason{Kind: filapb.WaitKind(number)})
	}
	b.script("Explain", replyWith(&filapb.ExplainResponse{Reasons: reasons}))
	explanation, err := client.ExplainKey(t.Context(), "orders", "acme")
	check(t, err)
	for number, reason := range explanation.Reasons {
		equal(t, strconv.Itoa(number), reason.Kind, kinds[number])
	}
}

func TestConfigIsSetReadListedAndDeleted(t *testing.T) {
	b := startBroker(t)
	client := newClient(t, b.target)
	b.script("SetConfig", replyWith(&filapb.SetConfigResponse{}))
	b.script("GetConfig", replyWith(&filapb.GetConfigResponse{Value: "v"}))
	b.script("DeleteConfig", replyWith(&filapb.DeleteConfigResponse{}))
	b.script("ListConfig", replyWith(&filapb.ListConfigResponse{
		Entries: []*filapb.ConfigEntry{{Key: "a", Value: "1"}, {Key: "b", Value: "2"}},
	}))
	check(t, client.SetConfig(t.Context(), "k", "v"))
	value, err := client.GetConfig(t.Context(), "k")
	check(t, err)
	equal(t, "value", value, "v")
	check(t, client.DeleteConfig(t.Context(), "k"))
	entries, err := client.ListConfig(t.Context(), "p")
	check(t, err)
	wantValue(t, entries, map[string]string{"a": "1", "b": "2"})
	wantRequest(t, b, "SetConfig", &filapb.SetConfigRequest{Key: "k", Value: "v"})
	all := map[string]string{"throttle:mail:rate": "5", "throttle:mail:burst": ""}
	check(t, client.SetConfigAll(t.Context(), all))
	together := b.seenOf("SetConfig")[1].request
	want := &filapb.SetConfigRequest{Entries: []*filapb.ConfigEntry{
		{Key: "throttle:mail:burst"}, {Key: "throttle:mail:rate", Value: "5"},
	}}
	equal(t, "set together", proto.Equal(together, want), true)
	wantRequest(t, b, "GetConfig", &filapb.GetConfigRequest{Key: "k"})
	wantRequest(t, b, "DeleteConfig", &filapb.DeleteConfigRequest{Key: "k"})
	wantRequest(t, b, "ListConfig", &filapb.ListConfigRequest{Prefix: "p"})
}

func TestAPIKeysAndTheirPermissions(t *testing.T) {
	b := startBroker(t)
	client := newClient(t, b.target)
	b.script("CreateApiKey", replyWith(&filapb.CreateApiKeyResponse{KeyId: "k", Secret: "s3cret"}))
	b.script("RevokeApiKey", replyWith(&filapb.RevokeApiKeyResponse{}))
	b.script("SetAcl", replyWith(&filapb.SetAclResponse{}))
	wire := []*filapb.AclPermission{{Kind: "produce", Pattern: "orders.*"}}
	b.script("GetAcl", replyWith(&filapb.GetAclResponse{
		Acl: append(wire, &filapb.AclPermission{Kind: "own", Pattern: "*"}), Superadmin: true,
	}))
	b.script("ListApiKeys", replyWith(&filapb.ListApiKeysResponse{Keys: []*filapb.ApiKeyInfo{{
		KeyId: "k", Name: "n", CreatedAt: timestamp, Superadmin: true, Acl: wire,
	}}}))
	acl := []fila.ACLEntry{{Permission: fila.PermissionProduce, Pattern: "orders.*"}}
	key, err := client.CreateAPIKey(t.Context(), fila.APIKeyRequest{
		Name: "n", ACL: acl, ExpiresAt: moment, IsSuperadmin: true,
	})
	check(t, err)
	wantValue(t, key, fila.NewAPIKey{KeyID: "k", Secret: "s3cret"})
	if shown := fmt.Sprintf("%v %+v %#v %s", key, key, key, key); strings.Contains(shown, "s3cret") {
		t.Fatalf("fmt shows the secret: %s", shown)
	}
	check(t, client.RevokeAPIKey(t.Context(), "k"))
	check(t, client.SetACL(t.Context(), "k", acl))
	found, err := client.GetACL(t.Context(), "k")
	check(t, err)
	newer := fila.ACLEntry{Permission: "own", Pattern: "*"}
	wantValue(t, found, fila.ACL{Entries: append(acl, newer), IsSuperadmin: true})
	keys, err := client.ListAPIKeys(t.Context())
	check(t, err)
	wantValue(t, keys, []fila.APIKeyInfo{{
		KeyID: "k", Name: "n", CreatedAt: moment, IsSuperadmin: true, ACL: acl,
	}})
	wantRequest(t, b, "CreateApiKey", &filapb.CreateApiKeyRequest{
		Name: "n", ExpiresAtMs: 1_700_000_000_123, Superadmin: true, Acl: wire,
	})
	long, never := fila.APIKeyRequest{ExpiresAt: time.Unix(0, 0)}, fila.APIKeyRequest{}
	for i, key := range []fila.APIKeyRequest{long, never} {
		_, err = client.CreateAPIKey(t.Context(), key)
		check(t, err)
		sent := b.seenOf("CreateApiKey")[i+1].request.(*filapb.CreateApiKeyRequest)
		equal(t, "long past is not never", sent.GetExpiresAtMs(), uint64(1-i))
	}
	wantRequest(t, b, "RevokeApiKey", &filapb.RevokeApiKeyRequest{KeyId: "k"})
	wantRequest(t, b, "SetAcl", &filapb.SetAclRequest{KeyId: "k", Acl: wire})
	wantRequest(t, b, "GetAcl", &filapb.GetAclRequest{KeyId: "k"})
}
