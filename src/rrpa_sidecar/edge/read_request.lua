-- Paths that Envoy answers by itself: the request is read first. Why: see plain_http.lua.
function envoy_on_request(handle)
  handle:body()
end
