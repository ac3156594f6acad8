//! Declares the small newtypes that the vocabulary is full of, so that each has the same traits and one text form.
//!
//! Numbers of 64 bits travel as text in JSON: a reader with IEEE doubles would lose digits above 2^53.

/// Derives that every type of the vocabulary has: archived by rkyv, and public as JSON.
macro_rules! text_serde {
    ($name:ident) => {
        #[cfg(feature = "schema")]
        impl utoipa::PartialSchema for $name {
            fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
                let text = utoipa::openapi::schema::Type::String;
                utoipa::openapi::ObjectBuilder::new().schema_type(text).into()
            }
        }
        #[cfg(feature = "schema")]
        impl utoipa::ToSchema for $name {}
        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }
        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = <String as serde::Deserialize>::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

/// A 64-bit id whose text form is a prefix and 16 hexadecimal digits.
macro_rules! hex_id {
    ($(#[$doc:meta])* $name:ident, $prefix:literal, $what:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash,
                 rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]
        pub struct $name(pub u64);
        impl std::fmt::Display for $name {
            fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(out, concat!($prefix, "{:016x}"), self.0)
            }
        }
        impl std::str::FromStr for $name {
            type Err = $crate::id::ParseIdError;
            fn from_str(text: &str) -> Result<Self, Self::Err> {
                let wrong = || $crate::id::ParseIdError { what: $what, text: text.chars().take(64).collect() };
                let digits = text.strip_prefix($prefix).ok_or_else(wrong)?;
                if digits.is_empty() || digits.len() > 16 || digits.starts_with('+') {
                    return Err(wrong());
                }
                u64::from_str_radix(digits, 16).map(Self).map_err(|_| wrong())
            }
        }
        text_serde!($name);
    };
}

/// A byte string of fixed length whose text form is hexadecimal.
macro_rules! hex_bytes {
    ($(#[$doc:meta])* $name:ident, $len:literal, $what:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash,
                 rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]
        pub struct $name(pub [u8; $len]);
        impl std::fmt::Display for $name {
            fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                out.write_str(&hex::encode(self.0))
            }
        }
        impl std::str::FromStr for $name {
            type Err = $crate::id::ParseIdError;
            fn from_str(text: &str) -> Result<Self, Self::Err> {
                let mut bytes = [0; $len];
                hex::decode_to_slice(text, &mut bytes).map_err(|_| $crate::id::ParseIdError {
                    what: $what,
                    text: text.chars().take(64).collect(),
                })?;
                Ok(Self(bytes))
            }
        }
        text_serde!($name);
    };
}

/// A counter that orders generations of one thing.
macro_rules! counter {
    ($(#[$doc:meta])* $name:ident, $inner:ty) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash,
                 rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, serde::Serialize, serde::Deserialize)]
        #[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
        #[serde(transparent)]
        pub struct $name(pub $inner);
        impl $name {
            /// Returns the next one; the counter saturates, which no cluster lives long enough to see.
            #[must_use]
            pub fn next(self) -> Self {
                Self(self.0.saturating_add(1))
            }
        }
        impl std::fmt::Display for $name {
            fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(out, "{}", self.0)
            }
        }
    };
}
