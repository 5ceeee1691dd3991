// SPDX-License-Identifier: AGPL-3.0-only
//! A call from its headers to the beginning of its answer: what is checked, in which order, and who
//! answers it. The order is that of the cost: nothing of a body is read for a call that is refused
//! for its headers, its number or its key.

use std::convert::Infallible;
use std::rc::Rc;
use std::sync::Arc;

use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::request::Parts;
use http::{HeaderMap, HeaderName, Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use tokio::task::spawn_local;
use tokio::time::{sleep_until, timeout_at, Instant};

use crate::calls::{Call, Leash, Out, Taken};
use crate::figures::Place;
use crate::framing::ended;
use crate::health;
use crate::inbox::{Event, Metadata, Standing};
use crate::outgoing::Outgoing;
use crate::reflection::{self, Reflection};
use crate::request::{giant, wordy, Requests};
use crate::state::{Kind, State};
use crate::status::{plain, Status, RESOURCE_EXHAUSTED, UNIMPLEMENTED};
use crate::timeout::timeout;
use crate::unread::Reader;

type Answer = Result<Response<Outgoing>, Status>;

/// What RFC 9113 adds to a header's name and value for its size.
const HEADER_OVERHEAD: usize = 32;

pub async fn serve(
    state: Rc<State>,
    reader: Rc<Reader>,
    request: Request<Incoming>,
) -> Result<Response<Outgoing>, Infallible> {
    let (head, body) = request.into_parts();
    if head.method != Method::POST {
        return Ok(plain(StatusCode::METHOD_NOT_ALLOWED));
    }
    if !is_grpc(&head.headers) {
        return Ok(plain(StatusCode::UNSUPPORTED_MEDIA_TYPE));
    }
    state.figures.calls.up();
    Ok(admitted(&state, reader, &head, body).await.unwrap_or_else(|status| {
        if status.code == RESOURCE_EXHAUSTED {
            state.figures.refused.up();
        }
        status.alone()
    }))
}

async fn admitted(state: &Rc<State>, reader: Rc<Reader>, head: &Parts, body: Incoming) -> Answer {
    let size = metadata_size(head);
    let most = state.settings.max_metadata_bytes as usize;
    if size > most {
        let text = format!("metadata of {size} bytes exceeds {most}");
        return Err(Status::new(RESOURCE_EXHAUSTED, text, ""));
    }
    let most = state.settings.max_concurrent_calls;
    let place =
        Place::take(&state.figures, |figures| &figures.calls_under_way, most).ok_or_else(|| {
            Status::overloaded(format!("{most} calls are under way already; try again later"))
        })?;
    let limit = head.headers.get("grpc-timeout").and_then(|it| timeout(it.as_bytes()));
    match limit.map(|limit| Instant::now() + limit) {
        None => answered(state, reader, head, body, place, None).await,
        Some(deadline) => {
            let answer = answered(state, reader, head, body, place, Some(deadline));
            timeout_at(deadline, answer).await.unwrap_or_else(|_| Err(Status::late()))
        }
    }
}

async fn answered(
    state: &Rc<State>,
    reader: Rc<Reader>,
    head: &Parts,
    body: Incoming,
    place: Place,
    deadline: Option<Instant>,
) -> Answer {
    let path = head.uri.path();
    if state.needs_key && !health::is_open(path) {
        let value = text(&head.headers, &AUTHORIZATION);
        state.keys.admitted(value, path, &state.inbox).await?;
    }
    let headers = &head.headers;
    let leash = if let Some(method) = health::Method::of(path) {
        checked(state, method, headers, body, place).await?
    } else if let (Some(_), true) = (&state.reflection, reflection::is_path(path)) {
        reflected(state, headers, body, place)?
    } else if let Some(&(route, kind)) = state.routes.get(path) {
        told(state, reader, route, kind, headers, body, place).await?
    } else {
        return Err(Status::new(UNIMPLEMENTED, "Method not found!", ""));
    };
    begun(state, leash, deadline).await
}

/// Wait for the beginning of the answer.
async fn begun(state: &Rc<State>, mut leash: Leash, deadline: Option<Instant>) -> Answer {
    if let Some(status) = leash.call.begun().await {
        return Ok(status.alone());
    }
    let is_open = !leash.call.is_over() || state.calls.find(leash.call.id).is_some();
    if let (Some(deadline), true) = (deadline, is_open) {
        let (calls, call) = (state.calls.clone(), leash.call.clone());
        let late = spawn_local(async move {
            sleep_until(deadline).await;
            calls.leave(&call);
            call.cut(Status::late());
        });
        leash.bind(late.abort_handle());
    }
    Ok(Outgoing::response(leash, state.inbox.clone()))
}

// --- Calls that Python answers -----------------------------------------------------------------

async fn told(
    state: &Rc<State>,
    reader: Rc<Reader>,
    route: usize,
    kind: Kind,
    headers: &HeaderMap,
    body: Incoming,
    place: Place,
) -> Result<Leash, Status> {
    let settings = &state.settings;
    let (most, too_large): (usize, fn(usize, usize) -> Status) = match kind {
        Kind::ServerStream => (settings.max_stream_request_bytes, wordy),
        Kind::Unary | Kind::Bidi => (settings.max_request_bytes, giant),
    };
    let mut requests = Requests::new(headers, body, most, too_large)?;
    let metadata = state.metadata.iter().map(|it| text(headers, it).map(str::to_owned)).collect();
    if kind == Kind::Bidi {
        let mut leash =
            entered(state, reader, route, None, metadata, Standing::new(place, None), None);
        let task = spawn_local(read_messages(state.clone(), leash.call.clone(), requests));
        leash.bind(task.abort_handle());
        return Ok(leash);
    }
    let (body, charge) = requests.first(state, reader.id).await?.ok_or_else(ended)?;
    let body = Some(body);
    Ok(if kind == Kind::Unary {
        entered(state, reader, route, body, metadata, Standing::new(place, Some(charge)), None)
    } else {
        // A stream may last for ever; what it asked for is charged until Python has it.
        entered(state, reader, route, body, metadata, Standing::new(place, None), Some(charge))
    })
}

fn entered(
    state: &Rc<State>,
    reader: Rc<Reader>,
    route: usize,
    body: Option<bytes::Bytes>,
    metadata: Metadata,
    standing: Arc<Standing>,
    charge: Option<crate::budget::Charge>,
) -> Leash {
    let call = state.calls.begin(standing.clone(), reader);
    let event = Event::Call { id: call.id, route, body, metadata, _charge: charge };
    state.inbox.push(event, Some(standing));
    Leash::new(&state.calls, call, Vec::new())
}

/// Hand the requests of a call over as Python lets them come.
async fn read_messages(state: Rc<State>, call: Rc<Call>, mut requests: Requests) {
    while !call.is_over() {
        let found = requests.next(&state, &call).await;
        if call.is_over() {
            return;
        }
        let standing = call.standing.get().cloned();
        match found {
            Ok(None) => {
                state.inbox.push(Event::HalfClosed { id: call.id }, standing);
                return;
            }
            Ok(Some((body, charge))) => {
                let charge = Arc::new(charge);
                call.hold(charge.clone());
                state.inbox.push(Event::Message { id: call.id, body, _charge: charge }, standing);
            }
            Err(status) => {
                call.spoil(status);
                state.inbox.push(Event::HalfClosed { id: call.id }, standing);
                return;
            }
        }
    }
}

// --- Calls that the edge answers by itself -----------------------------------------------------

async fn checked(
    state: &Rc<State>,
    method: health::Method,
    headers: &HeaderMap,
    body: Incoming,
    place: Place,
) -> Result<Leash, Status> {
    let mut requests =
        Requests::new(headers, body, state.settings.max_stream_request_bytes, wordy)?;
    let request = requests.only(state).await?.ok_or_else(ended)?;
    let mut places = vec![place];
    let call = if method == health::Method::Watch {
        let most = state.settings.watches_max;
        let watch = Place::take(&state.figures, |figures| &figures.watches, most);
        places.push(watch.ok_or_else(|| {
            Status::overloaded(format!("{most} watches are open already; use Check"))
        })?);
        state.health.watch(&request)?
    } else {
        let content = match method {
            health::Method::List => state.health.list(&request)?,
            _ => state.health.check(&request)?,
        };
        let call = Call::own();
        call.push(Out::Frame { content, taken: Taken::Nothing });
        call.push(Out::End(Status::ok()));
        call
    };
    Ok(Leash::new(&state.calls, call, places))
}

fn reflected(
    state: &Rc<State>,
    headers: &HeaderMap,
    body: Incoming,
    place: Place,
) -> Result<Leash, Status> {
    let most = state.settings.reflection_streams_max;
    let stream = Place::take(&state.figures, |figures| &figures.reflection_streams, most);
    let stream = stream.ok_or_else(|| {
        Status::overloaded(format!("{most} reflection streams are open already; try again later"))
    })?;
    let too_large = |size, _| Reflection::too_large(size);
    let requests = Requests::new(headers, body, reflection::REQUEST_BYTES_MAX, too_large)?;
    let call = Call::own();
    let mut leash = Leash::new(&state.calls, call.clone(), vec![place, stream]);
    let task = spawn_local(reflect(state.clone(), call, requests));
    leash.bind(task.abort_handle());
    Ok(leash)
}

/// Answer questions, the next one when the answer to the last has been taken.
async fn reflect(state: Rc<State>, call: Rc<Call>, mut requests: Requests) {
    let Some(reflection) = &state.reflection else { return };
    loop {
        let answer = match requests.next_small(&state).await {
            Ok(None) => return call.push(Out::End(Status::ok())),
            Ok(Some(request)) => reflection.answer(&request),
            Err(status) => Err(status),
        };
        match answer {
            Ok(content) => call.push(Out::Frame { content, taken: Taken::Nothing }),
            Err(status) => return call.push(Out::End(status)),
        }
        call.drained().await;
    }
}

// --- Headers -----------------------------------------------------------------------------------

fn is_grpc(headers: &HeaderMap) -> bool {
    let value = headers.get(CONTENT_TYPE).map_or(&b""[..], |it| it.as_bytes());
    match value.strip_prefix(b"application/grpc") {
        None => false,
        Some(rest) => matches!(rest.first(), None | Some(b'+' | b';')),
    }
}

/// Return a header's first value. One that is not text is none.
fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    std::str::from_utf8(headers.get(name)?.as_bytes()).ok()
}

fn metadata_size(head: &Parts) -> usize {
    let fields = head.headers.iter().map(|(name, value)| name.as_str().len() + value.len());
    let path = head.uri.path_and_query().map_or(0, |it| it.as_str().len());
    path + fields.map(|size| size + HEADER_OVERHEAD).sum::<usize>()
}
