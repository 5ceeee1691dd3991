// SPDX-License-Identifier: AGPL-3.0-only
//! The active span travels in message headers and call metadata, and nothing does without one.

use fila::{Client, EnqueueMessage};
use opentelemetry::Context;
use opentelemetry::trace::{
    FutureExt, SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState, Tracer,
    TracerProvider,
};
use opentelemetry_sdk::trace::{Sampler, SdkTracer, SdkTracerProvider};

use crate::broker::{Broker, frame};
use crate::proto;

fn tracer(sampler: Sampler) -> SdkTracer {
    SdkTracerProvider::builder().with_sampler(sampler).build().tracer("test")
}

fn span(tracer: &SdkTracer) -> Context {
    Context::new().with_span(tracer.start_with_context("test", &Context::new()))
}

fn traceparent(context: &Context) -> String {
    let span = context.span();
    let identity = span.span_context();
    format!("00-{}-{}-01", identity.trace_id(), identity.span_id())
}

fn headers(broker: &Broker, call: usize) -> Vec<std::collections::HashMap<String, String>> {
    let request: proto::EnqueueBatchRequest = broker.calls("EnqueueBatch")[call].request();
    request.messages.into_iter().map(|message| message.headers).collect()
}

#[tokio::test]
async fn the_active_span_is_in_headers_and_metadata() {
    let broker = Broker::start();
    broker.answer("Consume", frame(&["a"]));
    broker.answer("GetConfig", proto::GetConfigResponse::default());
    let client = Client::connect(broker.target()).await.unwrap();
    let context = span(&tracer(Sampler::AlwaysOn));
    let work = async {
        client.enqueue(EnqueueMessage::new("orders", "")).await.unwrap();
        client.enqueue_many([EnqueueMessage::new("orders", "")]).await.unwrap();
        client.ack("orders", "m", None).await.unwrap();
        client.get_config("key").await.unwrap();
        client.consume("orders").await.unwrap().next().await.unwrap().unwrap();
    };
    work.with_context(context.clone()).await;
    let parent = traceparent(&context);
    assert_eq!(headers(&broker, 0)[0]["traceparent"], parent);
    assert_eq!(headers(&broker, 1)[0]["traceparent"], parent);
    for method in ["EnqueueBatch", "AckBatch", "GetConfig", "Consume"] {
        for call in broker.calls(method) {
            assert_eq!(call.metadata["traceparent"], parent, "{method}");
            assert!(!call.metadata.contains_key("tracestate"));
        }
    }
}

#[tokio::test]
async fn tracestate_travels_too() {
    let broker = Broker::start();
    let client = Client::connect(broker.target()).await.unwrap();
    let parent = SpanContext::new(
        TraceId::from(7),
        SpanId::from(7),
        TraceFlags::SAMPLED,
        true,
        TraceState::from_key_value([("vendor", "1")]).unwrap(),
    );
    let parent = Context::new().with_remote_span_context(parent);
    let child = tracer(Sampler::AlwaysOn).start_with_context("test", &parent);
    let context = Context::new().with_span(child);
    client.enqueue(EnqueueMessage::new("orders", "")).with_context(context).await.unwrap();
    assert_eq!(headers(&broker, 0)[0]["tracestate"], "vendor=1");
    assert_eq!(broker.seen()[0].metadata["tracestate"], "vendor=1");
}

#[tokio::test]
async fn a_traceparent_of_the_callers_own_is_untouched() {
    let broker = Broker::start();
    let client = Client::connect(broker.target()).await.unwrap();
    let context = span(&tracer(Sampler::AlwaysOn));
    let message = EnqueueMessage::new("orders", "").header("traceparent", "mine");
    client.enqueue(message).with_context(context.clone()).await.unwrap();
    assert_eq!(headers(&broker, 0)[0]["traceparent"], "mine");
    assert_eq!(broker.seen()[0].metadata["traceparent"], traceparent(&context));
}

#[tokio::test]
async fn without_a_recording_span_nothing_is_added() {
    let broker = Broker::start();
    let client = Client::connect(broker.target()).await.unwrap();
    client.enqueue(EnqueueMessage::new("orders", "")).await.unwrap();
    let context = span(&tracer(Sampler::AlwaysOff));
    client.enqueue(EnqueueMessage::new("orders", "")).with_context(context).await.unwrap();
    for (index, call) in broker.seen().iter().enumerate() {
        assert!(headers(&broker, index)[0].is_empty());
        assert!(!call.metadata.contains_key("traceparent"));
    }
}

#[tokio::test]
async fn each_message_of_a_shared_request_keeps_its_own_trace() {
    let broker = Broker::start();
    let client = Client::connect(broker.target()).await.unwrap();
    let tracer = tracer(Sampler::AlwaysOn);
    let (one, two) = (span(&tracer), span(&tracer));
    let (first, second) = tokio::join!(
        client.enqueue(EnqueueMessage::new("orders", "")).with_context(one.clone()),
        client.enqueue(EnqueueMessage::new("orders", "")).with_context(two.clone()),
    );
    first.unwrap();
    second.unwrap();
    let calls = 0..broker.calls("EnqueueBatch").len();
    let found: Vec<_> = calls.flat_map(|call| headers(&broker, call)).collect();
    assert_eq!(found[0]["traceparent"], traceparent(&one));
    assert_eq!(found[1]["traceparent"], traceparent(&two));
}
