// SPDX-License-Identifier: AGPL-3.0-only
//! What calls go through: a channel, below whatever layers the user puts around it.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::transport::Channel;
use tower::util::BoxCloneSyncService;
use tower::{Layer, ServiceExt};

use crate::BoxError;

type Request = http::Request<Body>;
type Response = http::Response<Body>;
pub(crate) type AddLayer = Arc<dyn Fn(Transport) -> Transport + Send + Sync>;

/// The service that a [layer](crate::ClientBuilder::layer) is put around.
#[derive(Clone)]
pub struct Transport(Kind);

#[derive(Clone)]
enum Kind {
    Bare(Channel),
    Layered(BoxCloneSyncService<Request, Response, BoxError>),
}

impl Transport {
    pub(crate) fn new(channel: Channel, layers: &[AddLayer]) -> Self {
        layers.iter().fold(Self(Kind::Bare(channel)), |inner, layer| layer(inner))
    }
}

/// A layer without its type.
pub(crate) fn boxed_layer<L, S, B>(layer: L) -> AddLayer
where
    L: Layer<Transport, Service = S> + Send + Sync + 'static,
    S: Service<Request, Response = http::Response<B>> + Clone + Send + Sync + 'static,
    S::Error: Into<BoxError>,
    S::Future: Send + 'static,
    B: tonic::codegen::Body<Data = bytes::Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    Arc::new(move |inner| {
        let answered = |response: http::Response<B>| response.map(Body::new);
        let service = layer.layer(inner).map_response(answered).map_err(Into::into);
        Transport(Kind::Layered(BoxCloneSyncService::new(service)))
    })
}

impl Service<Request> for Transport {
    type Response = Response;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        match &mut self.0 {
            Kind::Bare(channel) => channel.poll_ready(context).map_err(Into::into),
            Kind::Layered(service) => service.poll_ready(context),
        }
    }

    fn call(&mut self, request: Request) -> Self::Future {
        match &mut self.0 {
            Kind::Bare(channel) => {
                let answer = channel.call(request);
                Box::pin(async move { answer.await.map_err(Into::into) })
            }
            Kind::Layered(service) => service.call(request),
        }
    }
}

impl std::fmt::Debug for Transport {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Transport").finish_non_exhaustive()
    }
}
