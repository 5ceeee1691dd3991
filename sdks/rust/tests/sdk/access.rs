// SPDX-License-Identifier: AGPL-3.0-only
//! Every call about API keys sends its request and reads its answer in full.

use std::time::{Duration, UNIX_EPOCH};

use fila::{AclEntry, ApiKeyOptions, Permission};

use crate::admin::{at, exchange};
use crate::proto;

fn permission(kind: &str, pattern: &str) -> proto::AclPermission {
    proto::AclPermission { kind: kind.to_owned(), pattern: pattern.to_owned() }
}

#[tokio::test]
async fn a_key_that_ends_before_1970_is_not_one_that_never_ends() {
    let answer = proto::CreateApiKeyResponse::default();
    let (request, _): (proto::CreateApiKeyRequest, _) =
        exchange("CreateApiKey", answer, |client| async move {
            let expires_at = Some(UNIX_EPOCH);
            client.create_api_key(ApiKeyOptions { expires_at, ..Default::default() }).await
        })
        .await;
    assert_eq!(request.expires_at_ms, 1);
}

#[tokio::test]
async fn api_keys_are_created_listed_and_revoked() {
    let answer =
        proto::CreateApiKeyResponse { key_id: "k-1".to_owned(), secret: "s3cret".to_owned() };
    let (request, key): (proto::CreateApiKeyRequest, _) =
        exchange("CreateApiKey", answer, |client| async move {
            let options = ApiKeyOptions {
                name: "ci".to_owned(),
                acl: vec![AclEntry::new(Permission::Produce, "orders")],
                expires_at: Some(UNIX_EPOCH + Duration::from_secs(9)),
                superadmin: true,
            };
            client.create_api_key(options).await
        })
        .await;
    let expected = proto::CreateApiKeyRequest {
        name: "ci".to_owned(),
        expires_at_ms: 9000,
        superadmin: true,
        acl: vec![permission("produce", "orders")],
    };
    assert_eq!(request, expected);
    assert_eq!((key.key_id.as_str(), key.secret.as_str()), ("k-1", "s3cret"));
    assert!(!format!("{key:?}").contains("s3cret"));

    let row = proto::ApiKeyInfo {
        key_id: "k-1".to_owned(),
        name: "ci".to_owned(),
        created_at: at(1),
        expires_at: None,
        superadmin: false,
        acl: vec![permission("own", "*")],
    };
    let answer = proto::ListApiKeysResponse { keys: vec![row] };
    let (_, keys): (proto::ListApiKeysRequest, _) =
        exchange("ListApiKeys", answer, |client| async move { client.list_api_keys().await }).await;
    let expected = fila::ApiKeyInfo {
        key_id: "k-1".to_owned(),
        name: "ci".to_owned(),
        created_at: Some(UNIX_EPOCH + Duration::from_secs(1)),
        expires_at: None,
        superadmin: false,
        acl: vec![AclEntry::new(Permission::Other("own".to_owned()), "*")],
    };
    assert_eq!(keys, [expected]);

    let (request, ()): (proto::RevokeApiKeyRequest, _) =
        exchange("RevokeApiKey", proto::RevokeApiKeyResponse {}, |client| async move {
            client.revoke_api_key("k-1").await
        })
        .await;
    assert_eq!(request.key_id, "k-1");
}

#[tokio::test]
async fn permissions_are_replaced_and_read() {
    let (request, ()): (proto::SetAclRequest, _) =
        exchange("SetAcl", proto::SetAclResponse {}, |client| async move {
            let acl = [Permission::Consume, Permission::Admin];
            client.set_acl("k-1", acl.map(|one| AclEntry::new(one, "orders.*"))).await
        })
        .await;
    assert_eq!(request.key_id, "k-1");
    assert_eq!(request.acl, [permission("consume", "orders.*"), permission("admin", "orders.*")]);
    let acl = vec![permission("produce", "orders.*")];
    let answer = proto::GetAclResponse { acl, superadmin: true };
    let (request, acl): (proto::GetAclRequest, _) =
        exchange("GetAcl", answer, |client| async move { client.get_acl("k-1").await }).await;
    assert_eq!(request.key_id, "k-1");
    assert!(acl.superadmin);
    assert_eq!(acl.entries, [AclEntry::new(Permission::Produce, "orders.*")]);
}
