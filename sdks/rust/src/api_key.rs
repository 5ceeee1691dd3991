// SPDX-License-Identifier: AGPL-3.0-only
//! The API key: one for good, or what a function gives for each call.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

use tonic::metadata::{Ascii, MetadataValue};

use crate::BoxError;
use crate::connection::locked;
use crate::error::{Error, Result};

const REDACTED: &str = "[redacted]";
// Keys that calls under way may still carry. Whoever rotates keys faster has no old ones at hand.
const KEYS_KEPT: usize = 8;

pub(crate) type AskForKey = Arc<dyn Fn() -> Result<String, BoxError> + Send + Sync>;

/// Where keys come from.
#[derive(Clone)]
pub(crate) enum KeySource {
    Nowhere,
    Fixed(String),
    Asked(AskForKey),
}

/// One key, as calls carry it.
pub(crate) struct Key {
    secret: String,
    pub(crate) header: MetadataValue<Ascii>,
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.secret == other.secret
    }
}

impl Key {
    fn new(secret: String) -> Result<Self> {
        // A header could not carry other characters, and its error would repeat the key.
        let is_printable = !secret.is_empty() && secret.bytes().all(|byte| byte.is_ascii_graphic());
        let header = format!("Bearer {secret}").parse().ok().filter(|_| is_printable);
        let mut header: MetadataValue<Ascii> = header.ok_or_else(|| {
            Error::invalid("api_key must be printable ASCII without spaces, and not empty")
        })?;
        header.set_sensitive(true);
        Ok(Self { secret, header })
    }
}

/// The keys of one client.
pub(crate) struct Keys {
    ask: Option<AskForKey>,
    // The latest one last.
    given: Mutex<VecDeque<Arc<Key>>>,
}

impl Keys {
    /// Fails when the key could not be sent. A function is not asked yet.
    pub(crate) fn new(source: &KeySource) -> Result<Self> {
        let (ask, given) = match source {
            KeySource::Nowhere => (None, VecDeque::new()),
            KeySource::Fixed(secret) => (None, VecDeque::from([Key::new(secret.clone())?.into()])),
            KeySource::Asked(ask) => (Some(Arc::clone(ask)), VecDeque::new()),
        };
        Ok(Self { ask, given: Mutex::new(given) })
    }

    /// The key for what is sent now. Fails as the function does that gives it.
    pub(crate) fn current(&self) -> Result<Option<Arc<Key>>> {
        let Some(ask) = &self.ask else { return Ok(locked(&self.given).back().cloned()) };
        let secret = match catch_unwind(AssertUnwindSafe(|| ask())) {
            Ok(Ok(secret)) => secret,
            Ok(Err(error)) => return Err(Error::no_key(error)),
            Err(_) => return Err(Error::no_key("it panicked".into())),
        };
        let mut given = locked(&self.given);
        if let Some(place) = given.iter().position(|key| key.secret == secret) {
            return Ok(given.get(place).cloned());
        }
        let key = Arc::new(Key::new(secret)?);
        given.push_back(Arc::clone(&key));
        if given.len() > KEYS_KEPT {
            given.pop_front();
        }
        Ok(Some(key))
    }

    /// A peer's text without any key that it may have seen.
    pub(crate) fn redacted(&self, text: &str) -> String {
        let given = locked(&self.given);
        given.iter().fold(text.to_owned(), |text, key| text.replace(&key.secret, REDACTED))
    }
}
