// SPDX-License-Identifier: AGPL-3.0-only
//! What all tasks of the edge's thread share.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use http::HeaderName;
use hyper::server::conn::http2;

use crate::budget::Budget;
use crate::calls::Calls;
use crate::connection::{http, OwnThread};
use crate::figures::Figures;
use crate::health::Health;
use crate::inbox::Inbox;
use crate::keys::Keys;
use crate::outbox::Outbox;
use crate::reflection::Reflection;
use crate::settings::Settings;
use crate::tls::Certificates;
use crate::unread::Unread;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Unary,
    ServerStream,
    Bidi,
}

/// What both threads hold.
#[derive(Clone)]
pub struct Shared {
    pub inbox: Arc<Inbox>,
    pub outbox: Arc<Outbox>,
    pub budget: Arc<Budget>,
    pub keys: Arc<Keys>,
    pub figures: Arc<Figures>,
    pub certificates: Option<Arc<Certificates>>,
}

/// What Python says once.
pub struct Contract {
    pub settings: Settings,
    pub routes: HashMap<String, (usize, Kind)>,
    pub metadata: Vec<HeaderName>,
    pub needs_key: bool,
    pub services: Vec<String>,
    pub reflection: Option<Reflection>,
}

pub struct State {
    pub settings: Settings,
    pub routes: HashMap<String, (usize, Kind)>,
    pub metadata: Vec<HeaderName>,
    pub needs_key: bool,
    pub reflection: Option<Reflection>,
    pub health: Health,
    pub calls: Rc<Calls>,
    pub inbox: Arc<Inbox>,
    pub budget: Arc<Budget>,
    pub keys: Arc<Keys>,
    pub unread: Rc<Unread>,
    pub figures: Arc<Figures>,
    pub certificates: Option<Arc<Certificates>>,
    pub http: http2::Builder<OwnThread>,
}

impl State {
    pub fn new(contract: Contract, shared: Shared) -> Rc<Self> {
        Rc::new(Self {
            http: http(&contract.settings),
            health: Health::new(contract.services),
            calls: Calls::new(shared.inbox.clone()),
            unread: Unread::new(contract.settings.max_unread_bytes),
            settings: contract.settings,
            routes: contract.routes,
            metadata: contract.metadata,
            needs_key: contract.needs_key,
            reflection: contract.reflection,
            inbox: shared.inbox,
            budget: shared.budget,
            keys: shared.keys,
            figures: shared.figures,
            certificates: shared.certificates,
        })
    }
}
