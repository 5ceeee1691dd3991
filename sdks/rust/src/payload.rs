// SPDX-License-Identifier: AGPL-3.0-only
//! Text and JSON beside bytes. What is put in is what comes out: no header says what a payload is.

use std::error::Error;
use std::fmt;

#[cfg(feature = "json")]
use serde::{Serialize, de::DeserializeOwned};

use crate::message::{EnqueueMessage, Message};

/// A payload is not what it was asked to be. Its source says where it goes wrong; the payload
/// itself is not shown.
#[derive(Debug)]
pub struct PayloadError {
    message_id: String,
    form: &'static str,
    source: Box<dyn Error + Send + Sync>,
}

impl PayloadError {
    /// The message that has the payload.
    #[must_use]
    pub fn message_id(&self) -> &str {
        &self.message_id
    }
}

impl fmt::Display for PayloadError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { message_id, form, source } = self;
        write!(out, "the payload of message \"{message_id}\" is not {form}: {source}")
    }
}

impl Error for PayloadError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.source)
    }
}

impl EnqueueMessage {
    /// A message whose payload is a text, in UTF-8.
    #[must_use]
    pub fn text(queue: impl Into<String>, text: impl Into<String>) -> Self {
        Self::new(queue, text.into())
    }

    /// A message whose payload is a value, in JSON.
    ///
    /// Fails when the value has no form in JSON.
    #[cfg(feature = "json")]
    pub fn json<T: Serialize + ?Sized>(
        queue: impl Into<String>,
        value: &T,
    ) -> serde_json::Result<Self> {
        Ok(Self::new(queue, serde_json::to_vec(value)?))
    }
}

impl Message {
    /// The payload as text. Fails when it is not UTF-8.
    pub fn text(&self) -> Result<&str, PayloadError> {
        std::str::from_utf8(&self.payload).map_err(|error| self.is_not("UTF-8", error))
    }

    /// The value that the payload is, in JSON. Fails when it is no JSON, or no such value.
    #[cfg(feature = "json")]
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, PayloadError> {
        serde_json::from_slice(&self.payload).map_err(|error| self.is_not("such JSON", error))
    }

    fn is_not(
        &self,
        form: &'static str,
        error: impl Error + Send + Sync + 'static,
    ) -> PayloadError {
        PayloadError { message_id: self.id.clone(), form, source: Box::new(error) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Bytes;

    fn message(payload: impl Into<Bytes>) -> Message {
        Message { id: "m-1".to_owned(), payload: payload.into(), ..Message::default() }
    }

    #[test]
    fn text_goes_in_and_comes_out() {
        let sent = EnqueueMessage::text("orders", String::from("grüße").as_str());
        assert_eq!(sent.payload, "grüße".as_bytes());
        assert_eq!(message(sent.payload).text().unwrap(), "grüße");
    }

    #[test]
    fn what_is_not_text_names_its_message_and_shows_no_payload() {
        let error = message(&b"secret\xff"[..]).text().unwrap_err();
        assert_eq!(error.message_id(), "m-1");
        let text = "the payload of message \"m-1\" is not UTF-8: ";
        assert!(error.to_string().starts_with(text), "{error}");
        assert!(!format!("{error} {error:?}").contains("secret"), "{error:?}");
        assert!(error.source().unwrap().is::<std::str::Utf8Error>());
    }

    #[cfg(feature = "json")]
    #[test]
    fn a_value_goes_in_and_comes_out_as_json() {
        let sent = EnqueueMessage::json("orders", &("order", 17)).unwrap();
        assert_eq!(sent.payload, r#"["order",17]"#);
        assert!(sent.headers.is_empty());
        assert_eq!(message(sent.payload).json::<(String, u8)>().unwrap(), ("order".into(), 17));
        let error = message("{\"n\": }").json::<serde_json::Value>().unwrap_err();
        let text = "the payload of message \"m-1\" is not such JSON: ";
        assert!(error.to_string().starts_with(text), "{error}");
    }
}
