//! Rows of the input, and the columns that Parquet output keeps of them.

use crate::Failure;
use crate::parquet_file::ParquetRow;
use parquet::basic::{LogicalType, Repetition, Type as PhysicalType};
use parquet::errors::ParquetError;
use parquet::schema::types::{Type, TypePtr};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

/// The fields of a text's row.
#[derive(Clone, Debug)]
pub(crate) enum Row {
    /// A JSON object, or a record of a CSV file.
    Object(Map<String, Value>),
    /// A row of a Parquet file.
    Parquet(ParquetRow),
}

impl Row {
    pub(crate) fn names(&self) -> Vec<&str> {
        match self {
            Row::Object(object) => object.keys().map(String::as_str).collect(),
            Row::Parquet(row) => row.names().collect(),
        }
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        match self {
            Row::Object(object) => object.contains_key(name),
            Row::Parquet(row) => row.names().any(|n| n == name),
        }
    }

    /// A field that is a string; `None` if there is none of this name.
    pub(crate) fn text(&self, name: &str) -> Option<Result<&str, String>> {
        match self {
            Row::Object(object) => object.get(name).map(|value| match value {
                Value::String(text) => Ok(text.as_str()),
                other => Err(format!("field `{name}` is {other}, not a string")),
            }),
            Row::Parquet(row) => row.text(name),
        }
    }

    /// Bytes in memory, where they are not those of the input.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Row::Object(_) => 0,
            Row::Parquet(row) => row.bytes(),
        }
    }

    /// All fields as JSON.
    pub(crate) fn object(&self) -> Result<Cow<'_, Map<String, Value>>, String> {
        match self {
            Row::Object(object) => Ok(Cow::Borrowed(object)),
            Row::Parquet(row) => row.object().map(Cow::Owned),
        }
    }
}

/// The columns of the input that Parquet output keeps.
#[derive(Clone, Debug)]
pub(crate) enum Columns {
    /// Fields of JSON objects or CSV records, in the order in which they first occur.
    Fields(Fields),
    /// The columns of Parquet files, and the first of these files.
    Parquet(Vec<TypePtr>, String),
}

impl Default for Columns {
    fn default() -> Columns {
        Columns::Fields(Fields::default())
    }
}

/// Most columns of a Parquet file that is written from objects: more are a sign of names that are
/// data.
const MAX_FIELDS: usize = 4096;

/// Fields with the types of their values.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fields {
    fields: Vec<(String, Option<FieldType>)>,
    places: HashMap<String, usize>,
}

/// The type of a field's values. A field of different types is JSON text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FieldType {
    Bool,
    /// `is_exact` if every value is a float too.
    Int {
        is_exact: bool,
    },
    Float,
    String,
    Json,
}

impl FieldType {
    /// `None` for null, which every column can hold.
    fn of(value: &Value) -> Option<FieldType> {
        Some(match value {
            Value::Null => return None,
            Value::Bool(_) => FieldType::Bool,
            Value::String(_) => FieldType::String,
            Value::Number(n) => match n.as_i64() {
                Some(n) => FieldType::Int { is_exact: n.unsigned_abs() <= 1 << f64::MANTISSA_DIGITS },
                None if n.is_f64() => FieldType::Float,
                None => FieldType::Json,
            },
            Value::Array(_) | Value::Object(_) => FieldType::Json,
        })
    }

    /// A type that holds the values of both without loss.
    fn union(self, other: FieldType) -> FieldType {
        use FieldType::{Float, Int, Json};
        match (self, other) {
            (a, b) if a == b => a,
            (Int { .. }, Int { .. }) => Int { is_exact: false },
            (Int { is_exact: true }, Float) | (Float, Int { is_exact: true }) => Float,
            _ => Json,
        }
    }
}

impl Fields {
    pub(crate) fn add(&mut self, object: &Map<String, Value>) -> Result<(), String> {
        object.iter().try_for_each(|(name, value)| self.add_field(name, FieldType::of(value)))
    }

    pub(crate) fn add_field(&mut self, name: &str, of: Option<FieldType>) -> Result<(), String> {
        if let Some(place) = self.places.get(name) {
            let known = &mut self.fields[*place].1;
            *known = match (*known, of) {
                (Some(a), Some(b)) => Some(a.union(b)),
                (a, b) => a.or(b),
            };
            return Ok(());
        }
        if self.fields.len() == MAX_FIELDS {
            return Err(format!("more than {MAX_FIELDS} different fields, too many for Parquet columns"));
        }
        self.places.insert(name.to_string(), self.fields.len());
        self.fields.push((name.to_string(), of));
        Ok(())
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.places.contains_key(name)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.fields.is_empty()
    }

    /// Names and types, to be recorded.
    pub(crate) fn recorded(&self) -> &[(String, Option<FieldType>)] {
        &self.fields
    }

    /// The fields that were recorded.
    pub(crate) fn from_recorded(fields: Vec<(String, Option<FieldType>)>) -> Result<Fields, String> {
        let mut all = Fields::default();
        fields.into_iter().try_for_each(|(name, of)| all.add_field(&name, of))?;
        Ok(all)
    }

    fn types(&self) -> Result<Vec<TypePtr>, ParquetError> {
        let column = |(name, of): &(String, Option<FieldType>)| {
            let (physical, logical) = match of.unwrap_or(FieldType::String) {
                FieldType::Bool => (PhysicalType::BOOLEAN, None),
                FieldType::Int { .. } => (PhysicalType::INT64, None),
                FieldType::Float => (PhysicalType::DOUBLE, None),
                FieldType::String => (PhysicalType::BYTE_ARRAY, Some(LogicalType::String)),
                FieldType::Json => (PhysicalType::BYTE_ARRAY, Some(LogicalType::Json)),
            };
            let builder = Type::primitive_type_builder(name, physical).with_repetition(Repetition::OPTIONAL);
            Ok(Arc::new(builder.with_logical_type(logical).build()?))
        };
        self.fields.iter().map(column).collect()
    }
}

impl Columns {
    pub(crate) fn is_empty(&self) -> bool {
        matches!(self, Columns::Fields(fields) if fields.is_empty())
    }

    /// Adds the columns of a Parquet file, which must be the same in all.
    pub(crate) fn add_parquet(&mut self, columns: Vec<TypePtr>, file: &str) -> Result<(), Failure> {
        match self {
            Columns::Fields(fields) if fields.is_empty() => *self = Columns::Parquet(columns, file.into()),
            Columns::Parquet(first, _) if *first == columns => {}
            Columns::Parquet(_, first) => {
                return Err(format!("{file}: other columns than {first}; Parquet output needs one list").into());
            }
            Columns::Fields(_) => return Err(mixed(file)),
        }
        Ok(())
    }

    /// Where fields of objects are added.
    pub(crate) fn fields(&mut self, file: &str) -> Result<&mut Fields, Failure> {
        match self {
            Columns::Fields(fields) => Ok(fields),
            Columns::Parquet(..) => Err(mixed(file)),
        }
    }

    pub(crate) fn types(&self) -> Result<Vec<TypePtr>, ParquetError> {
        match self {
            Columns::Fields(fields) => fields.types(),
            Columns::Parquet(columns, _) => Ok(columns.clone()),
        }
    }
}

fn mixed(file: &str) -> Failure {
    format!("{file}: Parquet output cannot keep the columns of Parquet files and of other files together").into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn field_types_hold_every_value() {
        let type_of = |values: &[Value]| {
            let mut fields = Fields::default();
            for value in values {
                fields.add(json!({ "a": value }).as_object().unwrap()).unwrap();
            }
            fields.fields[0].1
        };
        let big = json!((1i64 << 53) + 1);
        for (values, want) in [
            (vec![json!(null)], None),
            (vec![json!(null), json!("a")], Some(FieldType::String)),
            (vec![json!(true), json!(null)], Some(FieldType::Bool)),
            (vec![json!(1), json!(2)], Some(FieldType::Int { is_exact: true })),
            (vec![json!(1), json!(2.5)], Some(FieldType::Float)),
            (vec![json!(2.5), json!(1)], Some(FieldType::Float)),
            (vec![big.clone(), json!(1)], Some(FieldType::Int { is_exact: false })),
            // A float would change the large integer.
            (vec![big, json!(1), json!(2.5)], Some(FieldType::Json)),
            (vec![json!(u64::MAX)], Some(FieldType::Json)),
            (vec![json!("a"), json!(1)], Some(FieldType::Json)),
            (vec![json!([1])], Some(FieldType::Json)),
        ] {
            assert_eq!(type_of(&values), want, "{values:?}");
        }
        let many: Map<String, Value> = (0..=MAX_FIELDS).map(|i| (i.to_string(), Value::Null)).collect();
        assert!(Fields::default().add(&many).unwrap_err().contains("4096"));
    }
}
