// SPDX-License-Identifier: AGPL-3.0-only
//! The active span travels in message headers and call metadata, and nothing does without one. And
//! back: a message gives its sender's context, and a span around its handling.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use fila::tracing::{extract, processing};
use fila::{Client, ConsumeMessage, EnqueueMessage, HandlerError};
use opentelemetry::trace::{
    FutureExt, SpanContext, SpanId, SpanKind, Status, TraceContextExt, TraceFlags, TraceId,
    TraceState, Tracer, TracerProvider,
};
use opentelemetry::{Context, global};
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{Sampler, SdkTracer, SdkTracerProvider, SpanData, SpanExporter};
use tonic::Code;

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

fn headers(broker: &Broker, call: usize) -> Vec<HashMap<String, String>> {
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

const SENDER: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

/// Spans of the tracers that all programs share, once they have ended.
#[derive(Clone, Debug, Default)]
struct Kept(Arc<Mutex<Vec<SpanData>>>);

impl SpanExporter for Kept {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        self.0.lock().unwrap().extend(batch);
        Ok(())
    }
}

static KEPT: LazyLock<Kept> = LazyLock::new(|| {
    let kept = Kept::default();
    let provider = SdkTracerProvider::builder().with_simple_exporter(kept.clone()).build();
    global::set_tracer_provider(provider);
    kept
});

/// A message with these headers; its id tells its spans from those of other tests.
async fn received(id: &str, headers: &[(&str, &str)]) -> ConsumeMessage {
    LazyLock::force(&KEPT);
    let broker = Broker::start();
    let mut delivered = frame(&[id]);
    for (name, value) in headers {
        delivered.messages[0].headers.insert((*name).to_owned(), (*value).to_owned());
    }
    broker.answer("Consume", delivered);
    let client = Client::connect(broker.target()).await.unwrap();
    client.consume("orders").await.unwrap().next().await.unwrap().unwrap()
}

fn ended(id: &str) -> Vec<SpanData> {
    let is_about = |span: &&SpanData| {
        span.attributes
            .iter()
            .any(|it| it.key.as_str() == "messaging.message.id" && it.value.as_str() == id)
    };
    KEPT.0.lock().unwrap().iter().filter(is_about).cloned().collect()
}

fn linked(span: &SpanData) -> Vec<String> {
    span.links.iter().map(|link| named(&link.span_context)).collect()
}

fn error_type(span: &SpanData) -> Option<String> {
    let found = span.attributes.iter().find(|it| it.key.as_str() == "error.type")?;
    Some(found.value.to_string())
}

fn named(span: &SpanContext) -> String {
    format!("00-{}-{}-{:02x}", span.trace_id(), span.span_id(), span.trace_flags().to_u8())
}

#[tokio::test]
async fn a_messages_context_is_its_senders() {
    let message = received("x1", &[("traceparent", SENDER), ("tracestate", "vendor=1")]).await;
    let context = extract(&message);
    let span = context.span();
    assert_eq!(named(span.span_context()), SENDER);
    assert!(span.span_context().is_remote());
    assert_eq!(span.span_context().trace_state().get("vendor"), Some("1"));
}

#[tokio::test]
async fn a_message_without_a_context_leaves_the_current_one() {
    let more = format!("{SENDER}-more");
    let zeros = format!("00-{}-{}-01", "0".repeat(32), "1".repeat(16));
    let upper = SENDER.to_uppercase();
    for text in ["", "nonsense", &more, &zeros, &upper, &SENDER.replacen("00", "ff", 1)] {
        let message = received("x2", &[("traceparent", text)]).await;
        let mine = span(&tracer(Sampler::AlwaysOn));
        let _active = mine.clone().attach();
        assert_eq!(extract(&message).span().span_context(), mine.span().span_context(), "{text}");
    }
}

#[tokio::test]
async fn processing_is_a_consumers_span_below_its_sender() {
    let message = received("p1", &[("traceparent", SENDER)]).await;
    let given = processing(&message, async {
        assert!(Context::current().span().is_recording());
        Ok::<_, fila::Error>(42)
    })
    .await;
    assert_eq!(given.unwrap(), 42);
    let spans = ended("p1");
    let [span] = spans.as_slice() else { panic!("{spans:?}") };
    assert_eq!(span.name, "process orders");
    assert_eq!(span.span_kind, SpanKind::Consumer);
    assert_eq!(span.span_context.trace_id().to_string(), &SENDER[3..35]);
    assert_eq!(span.parent_span_id.to_string(), &SENDER[36..52]);
    assert_eq!(linked(span), [SENDER]);
    assert_eq!(span.status, Status::Unset);
    let about = span.attributes.iter().map(|it| (it.key.to_string(), it.value.to_string()));
    let expected = [
        ("messaging.system", "fila"),
        ("messaging.operation.name", "process"),
        ("messaging.operation.type", "process"),
        ("messaging.destination.name", "orders"),
        ("messaging.message.id", "p1"),
        ("fairness_key", message.fairness_key.as_str()),
    ];
    let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
    assert_eq!(about.collect::<HashMap<_, _>>(), HashMap::from(expected));
}

#[tokio::test]
async fn processing_inside_a_span_is_below_that_one_and_linked_to_its_sender() {
    let message = received("p2", &[("traceparent", SENDER)]).await;
    let mine = span(&tracer(Sampler::AlwaysOn));
    let work = processing(&message, async { Ok::<_, fila::Error>(()) });
    work.with_context(mine.clone()).await.unwrap();
    let span = &ended("p2")[0];
    assert_eq!(span.parent_span_id, mine.span().span_context().span_id());
    assert_eq!(linked(span), [SENDER]);
}

#[tokio::test]
async fn processing_a_message_without_a_context_begins_a_trace() {
    let message = received("p3", &[("traceparent", "nonsense")]).await;
    processing(&message, async { Ok::<_, fila::Error>(()) }).await.unwrap();
    let span = &ended("p3")[0];
    assert_eq!(span.parent_span_id, SpanId::INVALID);
    assert!(linked(span).is_empty());
}

#[tokio::test]
async fn processing_that_fails_says_so() {
    let message = received("p4", &[]).await;
    processing(&message, async { Err::<(), _>("no".to_owned()) }).await.unwrap_err();
    let span = &ended("p4")[0];
    assert_eq!(span.status, Status::error("no"));
    assert_eq!(error_type(span), Some("alloc::string::String".to_owned()));
}

#[tokio::test]
async fn a_span_that_the_sender_does_not_sample_is_not_recorded() {
    let unsampled = SENDER.replace("-01", "-00");
    let message = received("p5", &[("traceparent", &unsampled)]).await;
    processing(&message, async { Ok::<_, fila::Error>(()) }).await.unwrap();
    assert!(ended("p5").is_empty());
}

#[tokio::test]
async fn a_worker_handles_inside_a_span() {
    LazyLock::force(&KEPT);
    let broker = Broker::start();
    let mut delivered = frame(&["w1", "w2", "w3"]);
    for (place, sender) in [(0, SENDER), (2, &SENDER.replace("b7ad", "c7ad"))] {
        let headers = &mut delivered.messages[place].headers;
        headers.insert("traceparent".to_owned(), sender.to_owned());
    }
    broker.on("Consume", move |_, out| {
        let delivered = delivered.clone();
        async move {
            out.send(&delivered);
            out.idle().await;
        }
    });
    let client = Client::connect(broker.target()).await.unwrap();
    let worker = client.worker("orders", |message: ConsumeMessage| async move {
        assert!(Context::current().span().is_recording());
        if message.id == "w1" { Err("no".into()) } else { Ok(()) }
    });
    let (stop, task) = (worker.stop_handle(), tokio::spawn(worker.run()));
    broker.until(|_| ["w1", "w2", "w3"].iter().all(|id| ended(id).len() == 1)).await;
    stop.stop();
    task.await.unwrap().unwrap();
    assert_eq!(linked(&ended("w1")[0]), [SENDER]);
    assert_eq!(ended("w1")[0].status, Status::error("no"));
    assert_eq!(ended("w2")[0].status, Status::Unset);

    // A batch has one span, which knows all senders.
    let worker = client.batch_worker("orders", 3, |_| async { Ok(()) });
    let (stop, task) = (worker.stop_handle(), tokio::spawn(worker.run()));
    broker.until(|_| ended("w1").len() == 2).await;
    stop.stop();
    task.await.unwrap().unwrap();
    assert_eq!(linked(&ended("w1")[1]), [SENDER, &SENDER.replace("b7ad", "c7ad")]);
}

#[tokio::test]
async fn the_span_of_a_worker_says_what_its_handler_failed_with() {
    LazyLock::force(&KEPT);
    let broker = Broker::start();
    broker.refuse("GetConfig", Code::NotFound, "no such key", Some("CONFIG_NOT_FOUND"));
    let expected = [
        ("e-fila", Some("config_not_found")),
        ("e-other", Some("_OTHER")),
        ("e-later", Some("backpressure")),
        ("e-dead", Some("dead_letter")),
        ("e-panic", Some("panic")),
        ("e-slow", Some("timeout")),
        ("e-fine", None),
    ];
    let delivered = frame(&expected.map(|(id, _)| id));
    broker.on("Consume", move |_, out| {
        let delivered = delivered.clone();
        async move {
            out.send(&delivered);
            out.idle().await;
        }
    });
    let client = Client::connect(broker.target()).await.unwrap();
    let refused = client.get_config("key").await.unwrap_err();
    let worker = client.worker("orders", move |message: ConsumeMessage| {
        let refused = refused.clone();
        async move {
            match message.id.as_str() {
                "e-fila" => Err(refused)?,
                "e-other" => drop("x".parse::<u32>()?),
                "e-later" => return Err(HandlerError::backpressure(Duration::ZERO)),
                "e-dead" => return Err(HandlerError::dead_letter("hopeless")),
                "e-panic" => panic!("oh"),
                "e-slow" => std::future::pending().await,
                _ => {}
            }
            Ok(())
        }
    });
    let worker = worker.handler_timeout(Duration::from_millis(20));
    let (stop, task) = (worker.stop_handle(), tokio::spawn(worker.run()));
    broker.until(|_| expected.iter().all(|(id, _)| ended(id).len() == 1)).await;
    stop.stop();
    task.await.unwrap().unwrap();
    for (id, kind) in expected {
        assert_eq!(error_type(&ended(id)[0]).as_deref(), kind, "{id}");
    }
}
