//! Results as Arrow record batches.
//!
//! Each part of the table is one batch. Integers become `Int64`, dates `Date32`, strings `Utf8`, or `LargeUtf8` where
//! these would exceed 2 GiB, and decimals `Decimal128` of 38 digits with the column's scale.

use std::sync::Arc;

use arrow_array::builder::{GenericStringBuilder, PrimitiveBuilder};
use arrow_array::types::{ArrowPrimitiveType, Date32Type, Decimal128Type, Int64Type};
use arrow_array::{ArrayRef, OffsetSizeTrait, RecordBatch, RecordBatchOptions};
use arrow_schema::{DataType, Field, SchemaRef};
use pando_elf::{Column, ColumnType, Value};
use pando_elf_remote::PartRows;

use super::Rows;
use crate::error::{Error, Result};

/// Digits of a decimal.
const DIGITS: u8 = 38;

impl Rows {
    /// Schema of the record batches.
    pub fn arrow_schema(&self) -> SchemaRef {
        let is_large = |column: usize| self.parts.iter().any(|part| is_large(part, column));
        let field = |(number, column): (usize, &Column)| {
            let kind = match column.kind {
                ColumnType::Integer => DataType::Int64,
                ColumnType::Decimal { scale } => DataType::Decimal128(DIGITS, scale as i8),
                ColumnType::Date => DataType::Date32,
                ColumnType::String if is_large(number) => DataType::LargeUtf8,
                ColumnType::String => DataType::Utf8,
            };
            Field::new(&column.name, kind, column.is_nullable)
        };
        Arc::new(arrow_schema::Schema::new(self.columns().iter().enumerate().map(field).collect::<Vec<_>>()))
    }

    /// The rows as record batches, one for each part of the table that has any.
    ///
    /// # Errors
    /// [`Error::BadIndex`] if the table is damaged; [`Error::InvalidOption`] for a decimal of more than 38 digits.
    pub fn record_batches(&self) -> Result<Vec<RecordBatch>> {
        let schema = self.arrow_schema();
        let batch = |part: &PartRows| {
            let arrays = schema.fields().iter().enumerate().map(|(column, field)| {
                let values = (0..part.ids.len()).map(|row| part.value(column, row));
                self.array(field.data_type(), values)
            });
            let options = RecordBatchOptions::new().with_row_count(Some(part.ids.len()));
            let arrays = arrays.collect::<Result<_>>()?;
            RecordBatch::try_new_with_options(schema.clone(), arrays, &options).map_err(not_arrow)
        };
        self.parts.iter().map(batch).collect()
    }

    fn array(
        &self,
        kind: &DataType,
        values: impl Iterator<Item = pando_elf::Result<Value>>,
    ) -> Result<ArrayRef> {
        let values = values.map(|value| value.map_err(|error| Error::of_elf(self.table(), error)));
        let number = |value| match value {
            Value::Integer(number) => Some(i128::from(number)),
            Value::Date(days) => Some(i128::from(days)),
            Value::Decimal { unscaled, .. } => Some(unscaled),
            Value::Null | Value::String(_) => None,
        };
        let numbers = values.map(|value| value.map(|value| (number(value.clone()), value)));
        Ok(match kind {
            DataType::Int64 => primitive::<Int64Type>(numbers, |number| number as i64)?,
            DataType::Date32 => primitive::<Date32Type>(numbers, |number| number as i32)?,
            DataType::LargeUtf8 => strings::<i64>(numbers)?,
            DataType::Utf8 => strings::<i32>(numbers)?,
            other => {
                let array = decimals(numbers, other)?;
                Arc::new(array.with_data_type(other.clone()))
            }
        })
    }
}

/// A number, if the value is one, and the value.
type Numbered = Result<(Option<i128>, Value)>;

fn primitive<T: ArrowPrimitiveType>(
    values: impl Iterator<Item = Numbered>,
    native: impl Fn(i128) -> T::Native,
) -> Result<ArrayRef> {
    let mut array = PrimitiveBuilder::<T>::new();
    for value in values {
        array.append_option(value?.0.map(&native));
    }
    Ok(Arc::new(array.finish()))
}

fn decimals(
    values: impl Iterator<Item = Numbered>,
    kind: &DataType,
) -> Result<arrow_array::PrimitiveArray<Decimal128Type>> {
    let limit = 10_i128.pow(DIGITS.into());
    let mut array = PrimitiveBuilder::<Decimal128Type>::new().with_data_type(kind.clone());
    for value in values {
        let (number, value) = value?;
        if number.is_some_and(|number| number <= -limit || number >= limit) {
            let what = format!("{value} has more than {DIGITS} digits, which is all that Arrow holds");
            return Err(Error::InvalidOption(what));
        }
        array.append_option(number);
    }
    Ok(array.finish())
}

fn strings<O: OffsetSizeTrait>(values: impl Iterator<Item = Numbered>) -> Result<ArrayRef> {
    let mut array = GenericStringBuilder::<O>::new();
    for value in values {
        match value?.1 {
            Value::String(string) => array.append_value(string),
            _ => array.append_null(),
        }
    }
    Ok(Arc::new(array.finish()))
}

/// Whether the strings of a column may take 2 GiB or more.
fn is_large(part: &PartRows, column: usize) -> bool {
    let dictionary = part.dictionary(column);
    if !matches!(dictionary.column().kind, ColumnType::String) {
        return false;
    }
    let len = |&code: &u32| match dictionary.value(code) {
        Ok(Value::String(string)) => string.len() as u64,
        _ => 0,
    };
    part.codes(column).iter().map(len).sum::<u64>() > i32::MAX as u64
}

fn not_arrow(error: arrow_schema::ArrowError) -> Error {
    Error::InvalidOption(format!("the rows do not fit into a record batch: {error}"))
}
