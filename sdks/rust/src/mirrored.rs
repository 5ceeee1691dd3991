// SPDX-License-Identifier: AGPL-3.0-only
//! Public enums with the members of an enum of the contract.

/// Declares one, and how it is read.
macro_rules! mirrored {
    ($(#[$doc:meta])* $name:ident: $($(#[$member_doc:meta])* $member:ident,)*) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum $name {
            $($(#[$member_doc])* $member,)*
        }

        impl $name {
            /// None for "unspecified" and for what only a newer SDK knows.
            pub(crate) fn of(number: i32) -> Option<Self> {
                match $crate::proto::$name::try_from(number).ok()? {
                    $crate::proto::$name::Unspecified => None,
                    $($crate::proto::$name::$member => Some(Self::$member),)*
                }
            }
        }
    };
}

pub(crate) use mirrored;
