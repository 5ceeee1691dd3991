// SPDX-License-Identifier: AGPL-3.0-only
//! The body of a response. HTTP/2 asks it for a frame, keeps that until the caller's window has
//! room, and asks for the next one when it has sent it. So that it asks again is the sign that a
//! frame was taken over; one frame waits there, and all else that Python wrote waits here.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{HeaderValue, CONTENT_TYPE};
use http::Response;
use http_body::{Body, Frame, SizeHint};

use crate::calls::{Leash, Out, Taken};
use crate::inbox::{Event, Inbox};

pub struct Outgoing {
    source: Option<(Leash, Arc<Inbox>)>,
    /// What follows when the last frame has been taken over.
    taken: Taken,
}

impl Outgoing {
    pub fn empty() -> Self {
        Self { source: None, taken: Taken::Nothing }
    }

    /// The response of a call that has begun to answer.
    pub fn response(leash: Leash, inbox: Arc<Inbox>) -> Response<Self> {
        let mut response =
            Response::new(Self { source: Some((leash, inbox)), taken: Taken::Nothing });
        let kind = HeaderValue::from_static("application/grpc");
        response.headers_mut().insert(CONTENT_TYPE, kind);
        response
    }
}

impl Body for Outgoing {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = self.get_mut();
        let Some((leash, inbox)) = &this.source else { return Poll::Ready(None) };
        match std::mem::take(&mut this.taken) {
            Taken::Nothing => {}
            Taken::Replied => leash.call.replied(),
            taken @ (Taken::Told | Taken::ToldLast) => {
                let standing = leash.call.standing.get().cloned();
                inbox.push(Event::Taken { id: leash.call.id }, standing);
                if taken == Taken::ToldLast {
                    leash.ended();
                }
            }
        }
        loop {
            match leash.call.poll_next(context.waker()) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Out::Headers) => {}
                Poll::Ready(Out::Frame { content, taken }) => {
                    this.taken = taken;
                    return Poll::Ready(Some(Ok(Frame::data(content))));
                }
                Poll::Ready(Out::End(status)) => {
                    this.source = None;
                    return Poll::Ready(Some(Ok(Frame::trailers(status.trailers()))));
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.source.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        match self.source {
            Some(_) => SizeHint::default(),
            None => SizeHint::with_exact(0),
        }
    }
}
