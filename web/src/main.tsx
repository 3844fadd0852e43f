// SPDX-License-Identifier: Apache-2.0
import "./global.css";
import { QueryCache, QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { RouterProvider } from "@tanstack/react-router";
import { StrictMode } from "react";
import { createRoot } from "react-dom/client";
import { ApiError } from "./api/client";
import { router } from "./router";

const client: QueryClient = new QueryClient({
  // A key can be revoked at any time.
  queryCache: new QueryCache({
    onError: (e) => e instanceof ApiError && e.status === 401 && client.invalidateQueries({ queryKey: ["/login"] }),
  }),
  defaultOptions: {
    queries: {
      staleTime: 10_000,
      refetchOnWindowFocus: false,
      // Invalid requests stay invalid. A busy server answers 429.
      retry: (n, e) => n < 2 && !(e instanceof ApiError && e.status >= 400 && e.status < 500 && e.status !== 429),
    },
  },
});

createRoot(document.getElementById("root") as HTMLElement).render(
  <StrictMode>
    <QueryClientProvider client={client}>
      <RouterProvider router={router} />
    </QueryClientProvider>
  </StrictMode>,
);
