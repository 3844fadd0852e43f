// SPDX-License-Identifier: Apache-2.0

// Package ui tests the web UI in a browser: the shipped Collector with config/local.yaml reads
// recordings of real sessions, and web/test/ui.test.mjs compares the pages with the raw records.
// web/test/views.test.mjs sends sessions with what the recordings lack. web/test/login.test.mjs logs
// in with API keys.
package ui
