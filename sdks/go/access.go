// SPDX-License-Identifier: AGPL-3.0-only

// Who may do what: API keys and their permissions.

package fila

import (
	"context"
	"fmt"
	"time"

	"github.com/faiscadev/fila/sdks/go/internal/filapb"
)

// Permission is what an API key may be allowed to do.
type Permission string

// The permissions.
const (
	PermissionProduce Permission = "produce"
	PermissionConsume Permission = "consume"
	PermissionAdmin   Permission = "admin"
)

// ACLEntry is one permission on "orders" (one queue), "orders.*" (a prefix) or "*" (all).
type ACLEntry struct {
	Permission Permission
	Pattern    string
}

// ACL is what an API key may do; a superadmin may do everything.
type ACL struct {
	Entries      []ACLEntry
	IsSuperadmin bool
}

// APIKeyRequest describes a key to create. Only Name is required.
type APIKeyRequest struct {
	Name string
	ACL  []ACLEntry
	// ExpiresAt is when the key stops working; zero means never.
	ExpiresAt    time.Time
	IsSuperadmin bool
}

// NewAPIKey is a key that was just created. The secret is shown this once, and never by fmt.
type NewAPIKey struct {
	KeyID  string
	Secret string
}

// String leaves the secret out.
func (k NewAPIKey) String() string { return fmt.Sprintf("API key %q", k.KeyID) }

// GoString leaves the secret out.
func (k NewAPIKey) GoString() string { return k.String() }

// APIKeyInfo is one API key, without its secret.
type APIKeyInfo struct {
	KeyID     string
	Name      string
	CreatedAt time.Time
	// ExpiresAt is zero for a key that never expires.
	ExpiresAt    time.Time
	IsSuperadmin bool
	ACL          []ACLEntry
}

// CreateAPIKey creates an API key and returns its secret, this once.
func (c *Client) CreateAPIKey(ctx context.Context, key APIKeyRequest) (NewAPIKey, error) {
	entries, err := aclEntries(key.ACL)
	if err != nil {
		return NewAPIKey{}, err
	}
	request := &filapb.CreateApiKeyRequest{
		Name:        key.Name,
		ExpiresAtMs: expiry(key.ExpiresAt),
		Superadmin:  key.IsSuperadmin,
		Acl:         entries,
	}
	answer, err := once(ctx, c.connection, c.connection.admin.CreateApiKey, request, subject{})
	return NewAPIKey{KeyID: answer.GetKeyId(), Secret: answer.GetSecret()}, err
}

// RevokeAPIKey makes an API key useless at once. Fails with ErrAPIKeyNotFound.
func (c *Client) RevokeAPIKey(ctx context.Context, keyID string) error {
	request := &filapb.RevokeApiKeyRequest{KeyId: keyID}
	_, err := once(ctx, c.connection, c.connection.admin.RevokeApiKey, request, subject{})
	return err
}

// ListAPIKeys returns all API keys, without secrets.
func (c *Client) ListAPIKeys(ctx context.Context) ([]APIKeyInfo, error) {
	request := &filapb.ListApiKeysRequest{}
	answer, err := repeatedly(
		ctx, c.connection, c.connection.admin.ListApiKeys, request, subject{},
	)
	if err != nil {
		return nil, err
	}
	return each(answer.GetKeys(), readKeyInfo), nil
}

// SetACL replaces what an API key may do. Fails with ErrAPIKeyNotFound.
func (c *Client) SetACL(ctx context.Context, keyID string, acl []ACLEntry) error {
	entries, err := aclEntries(acl)
	if err != nil {
		return err
	}
	request := &filapb.SetAclRequest{KeyId: keyID, Acl: entries}
	_, err = once(ctx, c.connection, c.connection.admin.SetAcl, request, subject{})
	return err
}

// GetACL reads what an API key may do. Fails with ErrAPIKeyNotFound.
func (c *Client) GetACL(ctx context.Context, keyID string) (ACL, error) {
	request := &filapb.GetAclRequest{KeyId: keyID}
	answer, err := repeatedly(ctx, c.connection, c.connection.admin.GetAcl, request, subject{})
	if err != nil {
		return ACL{}, err
	}
	return ACL{
		Entries: each(answer.GetAcl(), readACLEntry), IsSuperadmin: answer.GetSuperadmin(),
	}, nil
}

// expiry is 0 for a key that never expires, and never 0 for one that does.
func expiry(at time.Time) uint64 {
	if at.IsZero() {
		return 0
	}
	return uint64(max(at.UnixMilli(), 1))
}

func aclEntries(acl []ACLEntry) ([]*filapb.AclPermission, error) {
	entries := make([]*filapb.AclPermission, len(acl))
	for i, entry := range acl {
		switch entry.Permission {
		case PermissionProduce, PermissionConsume, PermissionAdmin:
		default:
			text := fmt.Sprintf("%q is not a permission", entry.Permission)
			return nil, invalid(text, subject{})
		}
		entries[i] = &filapb.AclPermission{
			Kind: string(entry.Permission), Pattern: entry.Pattern,
		}
	}
	return entries, nil
}

func readACLEntry(raw *filapb.AclPermission) ACLEntry {
	return ACLEntry{Permission: Permission(raw.GetKind()), Pattern: raw.GetPattern()}
}

func readKeyInfo(raw *filapb.ApiKeyInfo) APIKeyInfo {
	return APIKeyInfo{
		KeyID:        raw.GetKeyId(),
		Name:         raw.GetName(),
		CreatedAt:    moment(raw.GetCreatedAt()),
		ExpiresAt:    moment(raw.GetExpiresAt()),
		IsSuperadmin: raw.GetSuperadmin(),
		ACL:          each(raw.GetAcl(), readACLEntry),
	}
}
