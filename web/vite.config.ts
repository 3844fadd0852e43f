// SPDX-License-Identifier: Apache-2.0
import react from "@vitejs/plugin-react";
import { defineConfig } from "vitest/config";

// File names are fixed, because the bundle is committed. The server sends an ETag for each file.
// Nothing is inlined as a data URL, because the Content-Security-Policy is default-src 'self'.
export default defineConfig({
  plugins: [react()],
  build: {
    outDir: "../extension/gpuqueryextension/ui/dist",
    emptyOutDir: true,
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    target: "es2022",
    rollupOptions: {
      output: {
        entryFileNames: "assets/[name].js",
        chunkFileNames: "assets/[name].js",
        assetFileNames: "assets/[name][extname]",
      },
    },
  },
  server: { proxy: { "/api": "http://127.0.0.1:8686" } },
  test: { environment: "node", include: ["src/**/*.test.ts"] },
});
