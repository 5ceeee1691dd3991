// SPDX-License-Identifier: AGPL-3.0-only
//! Who may do what: API keys and their permissions.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::client::Client;
use crate::connection::Admin;
use crate::error::Result;
use crate::message::moment;
use crate::proto;

/// What an API key may be allowed to do.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Permission {
    /// Enqueue.
    Produce,
    /// Consume, receive, settle and extend.
    Consume,
    /// Everything that operates a matching queue.
    Admin,
    /// A permission that only a newer SDK knows.
    Other(String),
}

impl Permission {
    fn into_kind(self) -> String {
        match self {
            Self::Produce => "produce".to_owned(),
            Self::Consume => "consume".to_owned(),
            Self::Admin => "admin".to_owned(),
            Self::Other(kind) => kind,
        }
    }

    fn of(kind: String) -> Self {
        match kind.as_str() {
            "produce" => Self::Produce,
            "consume" => Self::Consume,
            "admin" => Self::Admin,
            _ => Self::Other(kind),
        }
    }
}

/// One permission on `orders` (one queue), `orders.*` (a prefix) or `*` (all).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AclEntry {
    /// What is allowed.
    pub permission: Permission,
    /// On which queues.
    pub pattern: String,
}

impl AclEntry {
    /// One permission on one pattern.
    #[must_use]
    pub fn new(permission: Permission, pattern: impl Into<String>) -> Self {
        Self { permission, pattern: pattern.into() }
    }
}

impl From<AclEntry> for proto::AclPermission {
    fn from(entry: AclEntry) -> Self {
        Self { kind: entry.permission.into_kind(), pattern: entry.pattern }
    }
}

impl From<proto::AclPermission> for AclEntry {
    fn from(raw: proto::AclPermission) -> Self {
        Self { permission: Permission::of(raw.kind), pattern: raw.pattern }
    }
}

/// An API key to create.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ApiKeyOptions {
    /// A name for people, 1 to 100 characters.
    pub name: String,
    /// What the key may do; never more than the caller's own key.
    pub acl: Vec<AclEntry>,
    /// When the key stops working; `None` means never.
    pub expires_at: Option<SystemTime>,
    /// True for a key that may do everything, other keys included.
    pub superadmin: bool,
}

/// A key that was just created. The secret is shown this once, and never by `Debug`.
#[derive(Clone, PartialEq, Eq)]
pub struct NewApiKey {
    /// Names the key in later calls; not a secret.
    pub key_id: String,
    /// What clients connect with.
    pub secret: String,
}

impl fmt::Debug for NewApiKey {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("NewApiKey").field("key_id", &self.key_id).finish_non_exhaustive()
    }
}

/// One API key, without its secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiKeyInfo {
    /// Names the key.
    pub key_id: String,
    /// Its name for people.
    pub name: String,
    /// When it was created.
    pub created_at: Option<SystemTime>,
    /// When it stops working; `None` means never.
    pub expires_at: Option<SystemTime>,
    /// True for a key that may do everything.
    pub superadmin: bool,
    /// What it may do.
    pub acl: Vec<AclEntry>,
}

impl From<proto::ApiKeyInfo> for ApiKeyInfo {
    fn from(raw: proto::ApiKeyInfo) -> Self {
        Self {
            key_id: raw.key_id,
            name: raw.name,
            created_at: moment(raw.created_at),
            expires_at: moment(raw.expires_at),
            superadmin: raw.superadmin,
            acl: raw.acl.into_iter().map(AclEntry::from).collect(),
        }
    }
}

/// What an API key may do; a superadmin may do everything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acl {
    /// One permission each.
    pub entries: Vec<AclEntry>,
    /// True for a key that may do everything.
    pub superadmin: bool,
}

impl Client {
    /// Creates an API key and returns its secret, this once.
    pub async fn create_api_key(&self, options: ApiKeyOptions) -> Result<NewApiKey> {
        let request = proto::CreateApiKeyRequest {
            name: options.name,
            expires_at_ms: options.expires_at.map_or(0, ms_since_1970),
            superadmin: options.superadmin,
            acl: options.acl.into_iter().map(Into::into).collect(),
        };
        let send = |mut admin: Admin, request| async move { admin.create_api_key(request).await };
        let response = self.call().send(request, send).await?;
        Ok(NewApiKey { key_id: response.key_id, secret: response.secret })
    }

    /// Makes an API key useless at once.
    pub async fn revoke_api_key(&self, key_id: &str) -> Result<()> {
        let request = proto::RevokeApiKeyRequest { key_id: key_id.to_owned() };
        let send = |mut admin: Admin, request| async move { admin.revoke_api_key(request).await };
        self.call().send(request, send).await.map(drop)
    }

    /// All API keys, without secrets.
    pub async fn list_api_keys(&self) -> Result<Vec<ApiKeyInfo>> {
        let request = proto::ListApiKeysRequest {};
        let send = |mut admin: Admin, request| async move { admin.list_api_keys(request).await };
        let response = self.call().repeatable().send(request, send).await?;
        Ok(response.keys.into_iter().map(ApiKeyInfo::from).collect())
    }

    /// Replaces what an API key may do.
    pub async fn set_acl(
        &self,
        key_id: &str,
        acl: impl IntoIterator<Item = AclEntry>,
    ) -> Result<()> {
        let acl = acl.into_iter().map(Into::into).collect();
        let request = proto::SetAclRequest { key_id: key_id.to_owned(), acl };
        let send = |mut admin: Admin, request| async move { admin.set_acl(request).await };
        self.call().send(request, send).await.map(drop)
    }

    /// Reads what an API key may do.
    pub async fn get_acl(&self, key_id: &str) -> Result<Acl> {
        let request = proto::GetAclRequest { key_id: key_id.to_owned() };
        let send = |mut admin: Admin, request| async move { admin.get_acl(request).await };
        let response = self.call().repeatable().send(request, send).await?;
        let entries = response.acl.into_iter().map(AclEntry::from).collect();
        Ok(Acl { entries, superadmin: response.superadmin })
    }
}

/// A time in the contract's unit. Never 0, which would mean "never"; what is long past is refused.
fn ms_since_1970(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX).max(1)
}
