// SPDX-License-Identifier: Apache-2.0

// Package store_test tests the shipped Collector with the store: what the exporters get is what the
// store answers, also after repetitions and kills.
package store_test
